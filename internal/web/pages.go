// Package web has the HTTP pages of Sluice, which are compatible with kube-proxy's:
// health, metrics and diagnostics; and a Server that serves them at an address.
package web

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/pprof"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/munnerz/goautoneg"
	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/internal/health"
)

// Health serves the pages healthz and livez, for every method, and passes the status of each answer to count.
func Health(verdict func() health.Verdict, count func(page string, code int)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/healthz":
			v := verdict()
			r := report(v, v.Programmed(), &v.Eligible)
			r.Reason = v.Summary().Reason
			count("healthz", r.write(w))
		case "/livez":
			v := verdict()
			count("livez", report(v, v.Live, nil).write(w))
		default:
			http.NotFound(w, r)
		}
	})
}

// healthReport is the body; load balancers of some clouds read it.
type healthReport struct {
	LastUpdated  time.Time               `json:"lastUpdated"`
	CurrentTime  time.Time               `json:"currentTime"`
	NodeEligible *bool                   `json:"nodeEligible,omitempty"`
	Healthy      bool                    `json:"healthy"`
	Reason       string                  `json:"reason,omitempty"` // not in kube-proxy's
	Status       map[string]familyReport `json:"status,omitempty"`
}

type familyReport struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// report makes the body; eligible is nil if the page leaves the Node out.
func report(v health.Verdict, healthy bool, eligible *bool) healthReport {
	r := healthReport{LastUpdated: v.LastUpdated, CurrentTime: v.Now, NodeEligible: eligible, Healthy: healthy}
	for _, f := range v.Families {
		if r.Status == nil {
			r.Status = map[string]familyReport{}
		}
		r.Status[f.String()] = familyReport{v.LastUpdated, healthy}
	}
	if r.code() == http.StatusOK {
		r.LastUpdated = v.Now // no change waits, so the rules are as of now
	}
	return r
}

func (r healthReport) code() int {
	if !r.Healthy || r.NodeEligible != nil && !*r.NodeEligible {
		return http.StatusServiceUnavailable
	}
	return http.StatusOK
}

func (r healthReport) write(w http.ResponseWriter) int {
	body, _ := json.Marshal(r) // it always can be
	writeBody(w, typeJSON, r.code(), body)
	return r.code()
}

// The media types of answers.
const (
	typeText = "text/plain; charset=utf-8"
	typeJSON = "application/json"
	typeYAML = "application/yaml"
)

func writeBody(w http.ResponseWriter, mediaType string, code int, body []byte) {
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(body) // fails if the client closed the connection
}

// Options for Diagnostics. All are needed, SetVerbosity only for Profiling.
type Options struct {
	Mode   string            // the data plane
	Config []byte            // the configuration in force: KubeProxyConfiguration v1alpha1 as JSON
	Flags  map[string]string // the command line: every flag with its value

	Metrics, SLIs http.Handler
	Page          http.Handler // for people, at /; it gets GET and HEAD
	Checked       func()       // called at each request of /healthz

	Version  string        // of this program
	Emulates string        // the version of Kubernetes whose kube-proxy it replaces, such as "1.37"
	Started  time.Time     // this process
	Status   func() string // the end of /statusz

	// SetVerbosity sets the verbosity of the log. Profiling adds pprof and a page to set the verbosity.
	SetVerbosity func(level int)
	Profiling    bool
}

// component is the name that tools expect on the pages of kube-proxy.
const component = "kube-proxy"

// Diagnostics serves all pages of kube-proxy's metrics server. It requires no
// authentication: use it at an address that only the node itself reaches.
func Diagnostics(o Options) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", o.Page)
	mux.HandleFunc("/healthz", o.healthz)
	mux.HandleFunc("/healthz/ping", text("ok"))
	mux.HandleFunc("/proxyMode", text(o.Mode))
	mux.Handle("/metrics", o.Metrics)
	mux.Handle("/metrics/slis", o.SLIs)
	mux.HandleFunc("/configz", o.configz)
	mux.Handle("/flagz", o.flagz())
	mux.Handle("/statusz", o.statusz())
	if o.Profiling {
		o.profiling(mux)
	}
	return mux
}

// paths are the pages that /statusz names.
func paths() []string { return []string{"/configz", "/flagz", "/healthz", "/metrics", "/proxyMode"} }

func text(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { writeBody(w, typeText, http.StatusOK, []byte(body)) }
}

// healthz reports that this server answers. The health server reports whether the proxy does its work.
func (o Options) healthz(w http.ResponseWriter, r *http.Request) {
	o.Checked()
	body := "ok"
	if r.URL.Query().Has("verbose") {
		body = "[+]ping ok\nhealthz check passed\n"
	}
	text(body)(w, r)
}

func (o Options) configz(w http.ResponseWriter, _ *http.Request) {
	body, err := json.Marshal(map[string]json.RawMessage{"kubeproxy.config.k8s.io": o.Config})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	writeBody(w, typeJSON, http.StatusOK, body)
}

// profiling adds the pages of package pprof. That package puts them on
// http.DefaultServeMux as well, which nothing serves.
func (o Options) profiling(mux *http.ServeMux) {
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("/debug/flags", text("v: PUT a number to /debug/flags/v to set the verbosity of the log\n"))
	mux.HandleFunc("/debug/flags/v", o.verbosity)
}

func (o Options) verbosity(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPut {
		w.Header().Set("Allow", http.MethodPut)
		http.Error(w, "must be PUT", http.StatusMethodNotAllowed)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64))
	if err != nil {
		http.Error(w, "read body: "+err.Error(), http.StatusBadRequest)
		return
	}
	value := strings.TrimSpace(string(body))
	level, err := strconv.ParseInt(value, 10, 32)
	if err != nil {
		http.Error(w, strconv.Quote(value)+": must be a number, such as 4", http.StatusBadRequest)
		return
	}
	o.SetVerbosity(int(level))
	text("verbosity is "+strconv.FormatInt(level, 10)+"\n")(w, r)
}

// group is the API group of the structured forms of /flagz and /statusz.
const group = "config.k8s.io"

// page is a page as text, or as an object of a kind and version.
type page struct {
	kind   string
	text   func(io.Writer)
	object func(meta) any
}

// meta begins every structured page.
type meta struct {
	Kind       string   `json:"kind"`
	APIVersion string   `json:"apiVersion"`
	Metadata   metadata `json:"metadata"`
}

type metadata struct {
	Name string `json:"name"`
}

// ServeHTTP answers in the form that the request accepts.
func (p page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	form, ok := negotiate(r.Header.Values("Accept"), p.kind)
	if !ok {
		http.Error(w, fmt.Sprintf("must accept text/plain, or application/json or application/yaml with g=%s;v=v1beta1;as=%s",
			group, p.kind), http.StatusNotAcceptable)
		return
	}
	if form.version == "" {
		var b bytes.Buffer
		fmt.Fprintf(&b, "\n%s %s\nWarning: this text is for people; its format may change in any version.\n",
			component, strings.ToLower(p.kind))
		p.text(&b)
		writeBody(w, typeText, http.StatusOK, b.Bytes())
		return
	}
	body := form.marshal(p.object(meta{p.kind, group + "/" + form.version, metadata{component}}))
	if form.version != "v1beta1" {
		w.Header().Set("Warning", fmt.Sprintf("299 - %q", form.version+" of "+p.kind+" is deprecated, use v1beta1"))
	}
	writeBody(w, form.media, http.StatusOK, body)
}

// marshal encodes an object of texts, numbers and times, which always can be.
func (f form) marshal(object any) []byte {
	body, _ := json.Marshal(object)
	if f.media == typeYAML {
		body, _ = yaml.JSONToYAML(body)
		return body
	}
	return append(body, '\n')
}

func (o Options) flagz() page {
	return page{
		kind: "Flagz",
		text: func(w io.Writer) {
			for _, name := range slices.Sorted(maps.Keys(o.Flags)) {
				fmt.Fprintf(w, "%s=%s\n", name, o.Flags[name])
			}
		},
		object: func(m meta) any {
			return struct {
				meta
				Flags map[string]string `json:"flags,omitempty"`
			}{m, o.Flags}
		},
	}
}

func (o Options) statusz() page {
	return page{
		kind: "Statusz",
		text: func(w io.Writer) {
			up := int64(o.up().Seconds())
			fmt.Fprintf(w, "\nStarted: %s\n", o.Started.Format(time.UnixDate))
			fmt.Fprintf(w, "Up: %d hr %02d min %02d sec\n", up/3600, up/60%60, up%60)
			fmt.Fprintf(w, "Go version: %s\n", runtime.Version())
			fmt.Fprintf(w, "Binary version: %s\n", o.Version)
			fmt.Fprintf(w, "Emulation version: %s\n", o.Emulates)
			fmt.Fprintf(w, "Paths: %s\n", strings.Join(paths(), " "))
			fmt.Fprintf(w, "\n%s", o.Status())
		},
		object: func(m meta) any {
			return struct {
				meta
				StartTime        time.Time `json:"startTime"`
				UptimeSeconds    int64     `json:"uptimeSeconds"`
				GoVersion        string    `json:"goVersion"`
				BinaryVersion    string    `json:"binaryVersion"`
				EmulationVersion string    `json:"emulationVersion,omitempty"`
				Paths            []string  `json:"paths"`
			}{
				m, o.Started.UTC().Truncate(time.Second), int64(o.up().Seconds()), runtime.Version(), o.Version, o.Emulates,
				paths(),
			}
		},
	}
}

// up returns how long this process has run; never negative, even if the clock was set back.
func (o Options) up() time.Duration { return max(0, time.Since(o.Started)) }

// form is a form of a page; without a version it is text for people.
type form struct{ media, version string }

// negotiate returns the available form with the highest weight; false if none is
// acceptable. Without an Accept header it is text.
func negotiate(accept []string, kind string) (form, bool) {
	header := strings.Join(accept, ",")
	if strings.TrimSpace(header) == "" {
		return form{media: typeText}, true
	}
	for _, clause := range goautoneg.ParseAccept(header) {
		if f, ok := formOf(clause, kind); ok && clause.Q > 0 {
			return f, true
		}
	}
	return form{}, false
}

// formOf returns the form that a clause of an Accept header requests, if the kind has it.
func formOf(c goautoneg.Accept, kind string) (form, bool) {
	group0, version, as := c.Params["g"], c.Params["v"], c.Params["as"]
	plain := group0 == "" && version == "" && as == ""
	switch media := c.Type + "/" + c.SubType; media {
	case "text/plain", "text/*", "*/*":
		return form{media: typeText}, plain
	case typeJSON, typeYAML:
		known := version == "v1beta1" || version == "v1alpha1"
		return form{media, version}, group0 == group && known && as == kind
	}
	return form{}, false
}
