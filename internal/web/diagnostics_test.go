package web

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func options() Options {
	return Options{
		Mode: "nftables", Config: []byte(`{"kind":"KubeProxyConfiguration","mode":"nftables"}`),
		Flags:   map[string]string{"v": "2", "config": "/etc/c.yaml", "cluster-cidr": ""},
		Metrics: text("metrics"), SLIs: text("slis"), Page: text("page"),
		Version: "v1.2.3", Emulates: "1.37",
		Status: func() string { return "Sluice: all is well\n" }, Checked: func() {},
	}
}

func TestPages(t *testing.T) {
	checked := 0
	o := options()
	o.Checked = func() { checked++ }
	h := Diagnostics(o)
	const plain, json = "text/plain; charset=utf-8", "application/json"
	for _, tt := range []struct {
		name, request, media, body string
		code                       int
	}{
		{"it answers", "GET /healthz", plain, "ok", 200},
		{"and says so at length", "GET /healthz?verbose", plain, "[+]ping ok\nhealthz check passed\n", 200},
		{"its only check", "GET /healthz/ping", plain, "ok", 200},
		{"S-268 the mode, and no newline", "GET /proxyMode", plain, "nftables", 200},
		{"metrics", "GET /metrics", plain, "metrics", 200},
		{"indicators", "GET /metrics/slis", plain, "slis", 200},
		{
			"S-269 the configuration", "GET /configz", json,
			`{"kubeproxy.config.k8s.io":{"kind":"KubeProxyConfiguration","mode":"nftables"}}`, 200,
		},
		{"for people", "GET /?q=web", plain, "page", 200},
		{"which changes nothing", "POST /", plain, "Method Not Allowed\n", 405},
		{"nothing else", "GET /index.html", plain, "404 page not found\n", 404},
		{"S-271 no profiling", "GET /debug/pprof/", plain, "404 page not found\n", 404},
		{"S-271 none of its parts", "GET /debug/pprof/heap", plain, "404 page not found\n", 404},
		{"S-271 no flags", "PUT /debug/flags/v", plain, "404 page not found\n", 404},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := ask(t, h, tt.request)
			if got := bodyOf(t, r); got != tt.body || r.StatusCode != tt.code {
				t.Errorf("got %d %q, want %d %q", r.StatusCode, got, tt.code, tt.body)
			}
			if got := r.Header.Get("Content-Type") + " " + r.Header.Get("X-Content-Type-Options"); got != tt.media+" nosniff" {
				t.Errorf("got headers %s", got)
			}
		})
	}
	if checked != 2 {
		t.Errorf("told of %d looks at /healthz, want 2", checked)
	}
}

func TestInvalidConfigz(t *testing.T) {
	o := options()
	o.Config = []byte("kind:")
	if r := ask(t, Diagnostics(o), "GET /configz"); r.StatusCode != http.StatusInternalServerError {
		t.Errorf("got %d", r.StatusCode)
	}
}

func TestProfiling(t *testing.T) {
	var set []int
	o := options()
	o.Profiling, o.SetVerbosity = true, func(level int) { set = append(set, level) }
	h := Diagnostics(o)
	for _, tt := range []struct {
		name, request, body string
		code                int
		has                 string
	}{
		{"S-271 the index", "GET /debug/pprof/", "", 200, "goroutine"},
		{"a profile", "GET /debug/pprof/goroutine?debug=1", "", 200, "goroutine profile:"},
		{"the command line", "GET /debug/pprof/cmdline", "", 200, "test"},
		{"what can be set", "GET /debug/flags", "", 200, "/debug/flags/v"},
		{"it is set", "PUT /debug/flags/v", "4\n", 200, "verbosity is 4"},
		{"no number", "PUT /debug/flags/v", "loud", 400, `"loud": must be a number`},
		{"a number that is too big", "PUT /debug/flags/v", "99999999999", 400, "must be a number"},
		{"a long text", "PUT /debug/flags/v", strings.Repeat("1", 100), 400, "too large"},
		{"no other method", "GET /debug/flags/v", "", 405, "must be PUT"},
		{"no other flag", "PUT /debug/flags/w", "1", 404, "not found"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := ask(t, h, tt.request+"\n"+tt.body)
			if got := bodyOf(t, r); r.StatusCode != tt.code || !strings.Contains(got, tt.has) {
				t.Errorf("got %d %q, want %d with %q", r.StatusCode, got, tt.code, tt.has)
			}
		})
	}
	if got := fmt.Sprint(set); got != "[4]" {
		t.Errorf("set %s, want [4]", got)
	}
}

const flagText = `
kube-proxy flagz
Warning: this text is for people; its format may change in any version.
cluster-cidr=
config=/etc/c.yaml
v=2
`

func TestFlagzInEveryForm(t *testing.T) {
	const object = `{"kind":"Flagz","apiVersion":"config.k8s.io/%s","metadata":{"name":"kube-proxy"},` +
		`"flags":{"cluster-cidr":"","config":"/etc/c.yaml","v":"2"}}` + "\n"
	const object1 = "apiVersion: config.k8s.io/v1beta1\nflags:\n  cluster-cidr: \"\"\n  config: /etc/c.yaml\n" +
		"  v: \"2\"\nkind: Flagz\nmetadata:\n  name: kube-proxy\n"
	const plain, json, yaml = "text/plain; charset=utf-8", "application/json", "application/yaml"
	const kind = ";g=config.k8s.io;v=v1beta1;as=Flagz"
	for _, tt := range []struct{ name, accept, media, body string }{
		{"nothing said", "", plain, flagText},
		{"anything", "*/*", plain, flagText},
		{"text", "text/plain;q=0.9", plain, flagText},
		{"any text", "image/png, text/*", plain, flagText},
		{"as programs do", "application/json" + kind, json, fmt.Sprintf(object, "v1beta1")},
		{"in YAML", "application/yaml" + kind, yaml, object1},
		{"the older version", "application/json;g=config.k8s.io;v=v1alpha1;as=Flagz", json, fmt.Sprintf(object, "v1alpha1")},
		{"the first of two that are equal", "application/json" + kind + ", text/plain", json, fmt.Sprintf(object, "v1beta1")},
		{"what is liked best", "application/json" + kind + ";q=0.5, text/plain", plain, flagText},
		{"what there is", "application/cbor" + kind + ", text/plain;q=0.1", plain, flagText},
		{"JSON of no kind", "application/json", "", ""},
		{"another kind", "application/json;g=config.k8s.io;v=v1beta1;as=Statusz", "", ""},
		{"a version there is not", "application/json;g=config.k8s.io;v=v1;as=Flagz", "", ""},
		{"text of a kind", "text/plain" + kind, "", ""},
		{"a form there is not", "image/png", "", ""},
		{"refused", "text/plain;q=0", "", ""},
		{"nonsense", "?;?", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := ask(t, Diagnostics(options()), "GET /flagz", "Accept: "+tt.accept)
			body := bodyOf(t, r)
			if tt.media == "" {
				if r.StatusCode != http.StatusNotAcceptable || !strings.Contains(body, "as=Flagz") {
					t.Errorf("got %d %q, want 406 and what there is", r.StatusCode, body)
				}
				return
			}
			if got := r.Header.Get("Content-Type"); r.StatusCode != 200 || got != tt.media || body != tt.body {
				t.Errorf("got %d %s\n%s\nwant %s\n%s", r.StatusCode, got, body, tt.media, tt.body)
			}
			if old := strings.Contains(tt.accept, "alpha"); old != (r.Header.Get("Warning") != "") {
				t.Errorf("warned %q", r.Header.Get("Warning"))
			}
		})
	}
}

func TestStatusz(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // starts at midnight, 2000-01-01 UTC
		o := options()
		o.Started = time.Now().UTC()
		h := Diagnostics(o)
		time.Sleep(25*time.Hour + 2*time.Minute + 3*time.Second)
		want := `
kube-proxy statusz
Warning: this text is for people; its format may change in any version.

Started: Sat Jan  1 00:00:00 UTC 2000
Up: 25 hr 02 min 03 sec
Go version: VERSION
Binary version: v1.2.3
Emulation version: 1.37
Paths: /configz /flagz /healthz /metrics /proxyMode

Sluice: all is well
`
		unversioned := func(s string) string { return strings.ReplaceAll(s, runtime.Version(), "VERSION") }
		if got := unversioned(bodyOf(t, ask(t, h, "GET /statusz"))); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		object := `{"kind":"Statusz","apiVersion":"config.k8s.io/v1beta1","metadata":{"name":"kube-proxy"},` +
			`"startTime":"2000-01-01T00:00:00Z","uptimeSeconds":90123,"goVersion":"VERSION","binaryVersion":"v1.2.3",` +
			`"emulationVersion":"1.37","paths":["/configz","/flagz","/healthz","/metrics","/proxyMode"]}` + "\n"
		r := ask(t, h, "GET /statusz", "Accept: application/json;g=config.k8s.io;v=v1beta1;as=Statusz")
		if got := unversioned(bodyOf(t, r)); got != object {
			t.Errorf("got\n%s\nwant\n%s", got, object)
		}
	})
}

// Every page that /statusz names exists.
func TestStatuszNamesPages(t *testing.T) {
	h := Diagnostics(options())
	for _, path := range paths() {
		if r := ask(t, h, "GET "+path); r.StatusCode != 200 {
			t.Errorf("%s: got %d", path, r.StatusCode)
		}
	}
}
