package explain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
)

// still is a loop that nothing happens in.
type still struct {
	view proxy.View
	err  error
}

func (s still) Do(_ context.Context, look func(proxy.View)) error {
	if s.err == nil {
		look(s.view)
	}
	return s.err
}

func handler(loop still) Handler {
	store := cluster.NewStore()
	store.SetService(&cluster.Service{
		Name:       cluster.Name{Namespace: "default", Name: "web"},
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.80")},
		Ports:      []cluster.ServicePort{{Name: "http", Protocol: cluster.TCP, Port: 80}},
	})
	loop.view.Compiler = route.NewCompiler(route.Options{})
	loop.view.Compiler.Compile(store.Take())
	return Handler{
		Loop: loop, Store: store, Plane: Nftables(),
		Local: func(context.Context) ([]netip.Addr, error) { return nil, nil },
	}
}

func TestAnswersOverHTTP(t *testing.T) {
	for _, tt := range []struct {
		name, query string
		loop        still
		code        int
		want        string // the body of an error, or the headline and the notes
	}{
		{"an answer", "source=node&destination=default/web:http", still{view: proxy.View{Started: true}}, http.StatusOK, "refused"},
		{
			"the kernel refuses", "source=node&destination=default/web:http",
			still{view: proxy.View{Started: true, Err: errors.New("no space\nfor rules")}},
			http.StatusOK,
			"refused; the kernel may not do so yet, it refuses to: no space; for rules",
		},
		{
			"the kernel refuses this one", "source=node&destination=default/web:http",
			still{view: proxy.View{Started: true, Refused: map[cluster.Name]error{
				{Namespace: "default", Name: "web"}: errors.New("no such match"), {Namespace: "default", Name: "db"}: errors.New("why not"),
			}}},
			http.StatusOK,
			"refused; the kernel does not do so, it does not take the rules of default/web: no such match",
		},
		{
			"just started", "source=node&destination=default/web:http",
			still{},
			http.StatusOK,
			"refused; the kernel may not do so yet: nothing was written since the start",
		},
		{
			"a bad question", "source=me&destination=default/web",
			still{},
			http.StatusBadRequest,
			`source "me": want an IP address, or "node" for this node itself`,
		},
		{
			"the loop ends", "source=node&destination=default/web",
			still{err: context.Canceled},
			http.StatusServiceUnavailable,
			"ask the proxy: context canceled",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := httptest.NewRecorder()
			handler(tt.loop).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/explain?"+tt.query, nil))
			got := strings.TrimSpace(w.Body.String())
			if w.Code == http.StatusOK {
				var a Answer
				if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil {
					t.Fatal(err)
				}
				got = strings.Join(append([]string{string(a.Cases[0].Verdict)}, a.Notes...), "; ")
			}
			if w.Code != tt.code || got != tt.want {
				t.Errorf("got %d %s, want %d %s", w.Code, got, tt.code, tt.want)
			}
		})
	}
}

func TestAddressesThatAreUnknown(t *testing.T) {
	e := handler(still{})
	e.Local = func(context.Context) ([]netip.Addr, error) { return nil, errors.New("list addresses: not today") }
	if _, err := e.Ask(t.Context(), Question{}); err == nil || err.Error() != "list addresses: not today" {
		t.Errorf("got %v", err)
	}
}

// busy is a loop that changes a Service before every look, so many times, and
// that times how long each look holds it up.
type busy struct {
	compiler *route.Compiler
	store    *cluster.Store
	changes  int
	longest  time.Duration
}

func (b *busy) Do(_ context.Context, look func(proxy.View)) error {
	if b.changes > 0 {
		b.changes--
		b.store.SetService(webAt(uint16(1000 + b.changes)))
		b.compiler.Compile(b.store.Take())
	}
	began := time.Now()
	look(proxy.View{Compiler: b.compiler, Started: true})
	b.longest = max(b.longest, time.Since(began))
	return nil
}

func webAt(nodePort uint16) *cluster.Service {
	return &cluster.Service{
		Name: cluster.Name{Namespace: "default", Name: "web"}, Type: cluster.NodePort,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.80")},
		Ports:      []cluster.ServicePort{{Name: "http", Protocol: cluster.TCP, Port: 80, NodePort: nodePort}},
	}
}

func (b *busy) handler() Handler {
	b.store, b.compiler = cluster.NewStore(), route.NewCompiler(route.Options{})
	b.store.SetService(webAt(999))
	b.compiler.Compile(b.store.Take())
	return Handler{
		Loop: b, Store: b.store, Plane: Nftables(),
		Local: func(context.Context) ([]netip.Addr, error) { return nil, nil },
	}
}

// An answer is of one moment, although the loop is asked more than once.
func TestAServiceThatChangesMeanwhile(t *testing.T) {
	q, err := Parse("node", "default/web:http")
	if err != nil {
		t.Fatal(err)
	}
	loop := &busy{changes: 3}
	answer, err := loop.handler().Ask(t.Context(), q)
	if err != nil || len(answer.Cases) != 1 || !strings.Contains(fmt.Sprint(answer.Notes), "1000/tcp") {
		t.Errorf("after 3 changes %+v, %v, want the last one told", answer, err)
	}
	loop = &busy{changes: 1000}
	_, err = loop.handler().Ask(t.Context(), q)
	if want := "ask the proxy: default/web: it is being changed all the time; try again"; err == nil || err.Error() != want {
		t.Errorf("of one that changes all the time: %v, want %s", err, want)
	}
}

// The loop waits for what it alone knows, and for nothing else. The limit is for
// a busy machine.
func TestTheLoopIsNotHeldUp(t *testing.T) {
	const services, limit = 100_000, 250 * time.Millisecond
	loop := &busy{}
	h := loop.handler()
	for i := range services {
		loop.compiler.Table().Services[cluster.Name{Namespace: "default", Name: fmt.Sprint("service-", i)}] = &route.Service{}
	}
	for _, to := range []string{"default/servce-7", "default/web", "10.96.0.80:80", "192.0.2.1:80"} {
		q, err := Parse("10.244.1.5", to)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.Ask(t.Context(), q); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: held up for %v", to, loop.longest)
	}
	if loop.longest > limit {
		t.Errorf("a question holds up the loop for %v, want less than %v", loop.longest, limit)
	}
}
