//go:build linux

package page

import (
	"io"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

const address = "http://127.0.0.1:10249/"

// serve starts a daemon on a node, whose page everybody can reach.
func serve(t *testing.T, node *lab.Host) {
	t.Helper()
	path, err := harness.Program()
	must(t, err)
	p, err := harness.Start(node, exec.Command(path, "--manifests=testdata", "--proxy-mode=nftables",
		"--hostname-override=node-a", "--cluster-cidr=10.244.0.0/16", "--metrics-bind-address=0.0.0.0:10249"))
	must(t, err)
	t.Cleanup(func() {
		if _, err := p.Stop(syscall.SIGTERM, timeout()); err != nil {
			t.Error(err)
		}
	})
	must(t, p.Until(timeout(), "sync", func() error {
		_, err := p.Logs(timeout(), "msg=Synced")
		return err
	}))
}

// A person looks at a node, asks where a connection goes, and looks for a Service: in light and dark, with a large and
// a small screen, by the keyboard, without JavaScript.
func TestPageInABrowser(t *testing.T) {
	l := lab.New(t, lab.Options{})
	serve(t, l.NodeA)
	b := browse(t, l.NodeA)
	b.screen(1280, 900, "light")
	b.visit(address)
	has(t, b.html("#status"), "healthy", "no usable backend: 1 Service")
	has(t, b.html("#services"), "10.96.0.80", "30080", "headless", "no usable backend")
	has(t, b.html("#events"), "ServicesInForce")
	b.keep("status-light", "html")

	b.write("input[name=from]", "10.244.1.5")
	b.write("input[name=to]", "shop/web:80")
	b.loading(func() { b.press("input[name=to]") })
	has(t, b.html("svg"), "10.244.1.5", "shop/web:http", "clusterIP 10.96.0.80:80/tcp", "The client itself, masqueraded",
		"10.244.2.5:8080", ">1/3<", "the source address is kept")
	has(t, b.html("#explain"), "not ready", "internalTrafficPolicy Cluster")
	b.keep("explain-light", "html")
	b.screen(1280, 900, "dark")
	b.keep("explain-dark", "html")
	b.screen(390, 844, "dark")
	b.keep("explain-phone", "html")
	if w := b.layout().Content.Width; w > 390 {
		t.Errorf("the page is %v wide on a screen of 390", w)
	}
	b.screen(960, 900, "light")
	b.keep("explain", "#explain") // docs/page.png

	b.screen(1280, 900, "light")
	for _, tt := range []struct{ from, to, what, name string }{
		{"203.0.113.2", "192.168.0.2:30080", "masqueraded: backends see an address of this node", "masqueraded"},
		{"node", "shop/cart", "Refused", "refused"},
		{"node", "192.168.0.99:80", "Not changed by Sluice", "untouched"},
	} {
		b.write("input[name=from]", tt.from)
		b.write("input[name=to]", tt.to)
		b.loading(func() { b.press("form[action='./#explain'] button") })
		has(t, b.html("svg"), tt.what)
		b.keep(tt.name, "#explain")
	}
	b.write("input[name=q]", "30080")
	b.loading(func() { b.press("input[name=q]") })
	has(t, b.html("#services"), "1 Service with", "10.96.0.80")
	b.loading(func() { b.press("#services td a") })
	has(t, b.html("#service"), "Service shop/web", "10.244.2.6:8080", "not ready", "web-1")
	b.keep("service-light", "html")

	if len(b.fetched) == 0 {
		t.Error("no request was noted")
	}
	for _, url := range b.fetched {
		if !strings.HasPrefix(url, "GET "+address) {
			t.Errorf("the page made the browser request %s", url)
		}
	}
	if len(b.faults) > 0 {
		t.Errorf("the browser complains:\n%s", strings.Join(b.faults, "\n"))
	}
}

// Others than the node get the status only, and so does the node by a name that a website may own.
func TestOthersGetTheStatusOnly(t *testing.T) {
	l := lab.New(t, lab.Options{})
	serve(t, l.NodeA)
	_, body, err := harness.Get(l.NodeB, timeout(), "http://192.168.0.2:10249/")
	must(t, err)
	has(t, string(body), "healthy", "kubectl port-forward")
	hasNot(t, string(body), "shop", "10.96.0.80", "<form")
	for host, all := range map[string]bool{"localhost:10249": true, "rebound.example.com:10249": false} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, http.NoBody)
		must(t, err)
		r.Host = host
		got := answer(t, l.NodeA, r)
		if strings.Contains(got, "10.96.0.80") != all {
			t.Errorf("as %s the Services are shown: %v, want %v", host, !all, all)
		}
	}
}

func answer(t *testing.T, from *lab.Host, r *http.Request) string {
	t.Helper()
	response, err := harness.Client(from, timeout()).Do(r)
	must(t, err)
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	must(t, err)
	return string(body)
}

func has(t *testing.T, page string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(page, part) {
			t.Errorf("no %q in\n%s", part, page)
		}
	}
}

func hasNot(t *testing.T, page string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if strings.Contains(page, part) {
			t.Errorf("%q is in\n%s", part, page)
		}
	}
}
