//go:build linux

package apiserver

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/proxy"
)

// filterProxy is a reverse proxy in front of the API server, with the rights of an
// administrator. It delays or rejects requests for some kinds.
type filterProxy struct {
	*httptest.Server
	to http.Handler

	mu           sync.Mutex
	delayed      map[string]chan struct{} // by kind; closed to forward the requests
	absent       []string                 // kinds answered with 404
	requests     map[string]int
	disconnected bool
}

func newFilterProxy(t *testing.T, c *Cluster) *filterProxy {
	t.Helper()
	base, err := url.Parse(c.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	g := &filterProxy{delayed: map[string]chan struct{}{}, requests: map[string]int{}}
	g.to = &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(base) },
		Transport:     transport,
		FlushInterval: -1,
	}
	g.Server = httptest.NewServer(g)
	t.Cleanup(func() {
		g.CloseClientConnections()
		g.Close()
	})
	return g
}

func (g *filterProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	kind := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	g.mu.Lock()
	g.requests[kind]++
	held, absent, isCut := g.delayed[kind], slices.Contains(g.absent, kind), g.disconnected
	g.mu.Unlock()
	if isCut {
		panic(http.ErrAbortHandler)
	}
	if absent {
		http.NotFound(w, r)
		return
	}
	if held != nil {
		select {
		case <-held:
		case <-r.Context().Done():
			return
		}
	}
	g.to.ServeHTTP(w, r)
}

// delay makes requests for a kind wait until the returned function is called.
func (g *filterProxy) delay(kind string) (release func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	held := make(chan struct{})
	g.delayed[kind] = held
	return func() { close(held) }
}

// disconnect closes all connections and aborts new requests until reconnect.
func (g *filterProxy) disconnect() {
	g.setDisconnected(true)
	g.CloseClientConnections()
}

func (g *filterProxy) reconnect() { g.setDisconnected(false) }

func (g *filterProxy) setDisconnected(now bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.disconnected = now
}

// kinds returns the kinds that were requested so far, except Events, which clients only create.
func (g *filterProxy) kinds() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []string
	for kind := range g.requests {
		if kind != "events" {
			out = append(out, kind)
		}
	}
	slices.Sort(out)
	return out
}

// delayedList is a list that filterProxy delays.
type delayedList struct {
	kind     string
	received func(inspect.Status) bool // reports whether the daemon has the list
	release  func()
}

// status returns the status of the daemon on node A.
func (w *testEnv) status() (s inspect.Status, err error) {
	err = admin.Dial(admin.Options{NetNS: w.lab.NodeA.NetNSFD()}).Get(w.Context(), "/status", nil, &s)
	return s, err
}

// reported returns all attempts to write so far. A packet can show a write before Sluice has
// reported it; the loop answers a query only after that.
func (w *testEnv) reported(p *Proxy) []proxy.Sync {
	w.Helper()
	_, err := w.status()
	w.must(err)
	return p.Syncs()
}

func testSlowLists(w *testEnv) {
	svc := w.createService()
	w.setEndpoints("web", w.pods[0])
	g := newFilterProxy(w.T, w.Cluster)
	lists := []*delayedList{
		{kind: "endpointslices", received: func(s inspect.Status) bool { return s.Lag.Slices > 0 }},
		{kind: "services", received: func(s inspect.Status) bool { return s.Lag.Services > 0 }},
		{kind: "nodes", received: func(s inspect.Status) bool { return s.Node.Name != "" }},
		{kind: "servicecidrs", received: func(s inspect.Status) bool { return !s.LastSync.At.IsZero() }},
	}
	for _, l := range lists {
		l.release = g.delay(l.kind)
	}
	p := Run(w, w.lab.NodeA, "--master="+g.URL)
	w.eventually(func() error {
		if kinds := g.kinds(); !slices.Equal(kinds, []string{"endpointslices", "nodes", "servicecidrs", "services"}) {
			return fmt.Errorf("only %v were requested", kinds)
		}
		return nil
	})
	for _, l := range lists {
		if n := len(p.Syncs()); n > 0 || strings.Contains(w.rules(), "sluice") {
			w.Fatalf("%d writes before %s were listed; the rules:\n%s", n, l.kind, w.rules())
		}
		l.release()
		w.eventually(func() error {
			s, err := w.status()
			if err == nil && !l.received(s) {
				err = fmt.Errorf("%s were not received: %+v", l.kind, s)
			}
			return err
		})
		if _, err := w.status(); err != nil { // the loop answers, so it has run since then
			w.Fatal(err)
		}
	}
	w.waitReached(w.client, targets(svc, 80), w.pods[0])
}

func testNoServiceCIDRs(w *testEnv) {
	svc := w.createService()
	w.setEndpoints("web", w.pods[0])
	g := newFilterProxy(w.T, w.Cluster)
	g.absent = []string{"servicecidrs"}
	p := Run(w, w.lab.NodeA, "--master="+g.URL)
	w.waitReached(w.client, targets(svc, 80), w.pods[0])
	if n := strings.Count(p.Log(), "ServiceCIDR"); n != 1 {
		w.Errorf("the log reports %d times that there are no ServiceCIDRs:\n%s", n, p.Log())
	}
}
