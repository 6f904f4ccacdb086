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

	"github.com/sluice-proxy/sluice/internal/control"
	"github.com/sluice-proxy/sluice/internal/inspect"
)

// gate stands before the API server, as administrator. It holds up, or turns
// away, requests for some kinds.
type gate struct {
	*httptest.Server
	to http.Handler

	mu     sync.Mutex
	held   map[string]chan struct{} // by kind; closed when it is let through
	absent []string                 // kinds the server does not know
	asked  map[string]int
	isCut  bool
}

func newGate(t *testing.T, c *Cluster) *gate {
	t.Helper()
	base, err := url.Parse(c.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{held: map[string]chan struct{}{}, asked: map[string]int{}}
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

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	kind := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	g.mu.Lock()
	g.asked[kind]++
	held, absent, isCut := g.held[kind], slices.Contains(g.absent, kind), g.isCut
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

// hold makes requests for a kind wait until open is called.
func (g *gate) hold(kind string) (open func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	held := make(chan struct{})
	g.held[kind] = held
	return func() { close(held) }
}

// cut ends all connections and lets no new ones be of use until mend.
func (g *gate) cut() {
	g.setCut(true)
	g.CloseClientConnections()
}

func (g *gate) mend() { g.setCut(false) }

func (g *gate) setCut(now bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.isCut = now
}

// kinds returns the kinds that were requested so far, without Events, which clients
// only create.
func (g *gate) kinds() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []string
	for kind := range g.asked {
		if kind != "events" {
			out = append(out, kind)
		}
	}
	slices.Sort(out)
	return out
}

// heldList is a list that the API server delays.
type heldList struct {
	kind     string
	received func(inspect.Status) bool // the daemon has the list
	open     func()
}

// status asks the daemon of node A for its status.
func (w *world) status() (s inspect.Status, err error) {
	err = control.Dial(control.Options{NetNS: w.lab.NodeA.NetNSFD()}).Get(w.Context(), "/status", nil, &s)
	return s, err
}

func testSlowLists(w *world) {
	svc := w.create()
	w.back("web", w.pods[0])
	g := newGate(w.T, w.Cluster)
	lists := []*heldList{
		{kind: "endpointslices", received: func(s inspect.Status) bool { return s.Lag.Slices > 0 }},
		{kind: "services", received: func(s inspect.Status) bool { return s.Lag.Services > 0 }},
		{kind: "nodes", received: func(s inspect.Status) bool { return s.Node.Name != "" }},
		{kind: "servicecidrs", received: func(s inspect.Status) bool { return !s.LastSync.At.IsZero() }},
	}
	for _, l := range lists {
		l.open = g.hold(l.kind)
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
			w.Fatalf("%d writes before %s were listed; the kernel holds\n%s", n, l.kind, w.rules())
		}
		l.open()
		w.eventually(func() error {
			s, err := w.status()
			if err == nil && !l.received(s) {
				err = fmt.Errorf("%s were not received: %+v", l.kind, s)
			}
			return err
		})
		if _, err := w.status(); err != nil { // the loop takes part in each answer: it ran since then
			w.Fatal(err)
		}
	}
	w.reaches(w.client, targets(svc, 80), w.pods[0])
}

func testNoServiceCIDRs(w *world) {
	svc := w.create()
	w.back("web", w.pods[0])
	g := newGate(w.T, w.Cluster)
	g.absent = []string{"servicecidrs"}
	p := Run(w, w.lab.NodeA, "--master="+g.URL)
	w.reaches(w.client, targets(svc, 80), w.pods[0])
	if n := strings.Count(p.Log(), "ServiceCIDR"); n != 1 {
		w.Errorf("the log says %d times that there are no ServiceCIDRs:\n%s", n, p.Log())
	}
}
