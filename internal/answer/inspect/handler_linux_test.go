package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/sizes"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
)

// ask asks a handler, and returns the code and what it says.
func ask(t *testing.T, h http.Handler, url string) (int, string) {
	t.Helper()
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody))
	return rec.Code, strings.TrimSpace(rec.Body.String())
}

func TestAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var trouble error
		w := start(t, func(_ *world, o *Options) {
			o.Diff = func(context.Context) (plane.Plan, error) { return made("add a\nadd b\n"), trouble }
			o.Plan = func(context.Context) (plane.Plan, error) { return made("add <c>\n"), nil }
			o.Settings = Settings{Configuration: json.RawMessage(`{"mode":"a"}`), Flags: map[string]string{"v": "4"}}
		})
		w.load()
		h := w.Handler()
		for _, tt := range []struct {
			url  string
			code int
			want string
		}{
			{"/services?namespace=nowhere", 200, ""},
			{
				"/services?name=staging/web", 200,
				`{"namespace":"staging","name":"web","state":"not programmed","reason":"headless"}`,
			},
			{"/services?selector=tier+in+(back)", 200, ""},
			{"/backends?selector=missing", 200, ""},
			{"/nodeports?selector=!app&name=default/web", 200, ""},
			{
				"/services?selector=a+b", 503,
				`label selector "a b": unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt`,
			},
			{"/services?name=a/b/c", 503, `name "a/b/c": want NAME or NAMESPACE/NAME`},
			{"/backends?name=nothing", 404, `no Service "nothing" is known on this node; sluice get services lists them`},
			{"/nodeports?name=1", 404, `no node port "1" is known on this node; sluice get nodeports lists them`},
			{"/nodeports?name=70000", 404, `no node port "70000" is known on this node; sluice get nodeports lists them`},
			{
				"/hosts?name=default/web", 200,
				`{"address":"10.96.0.80","names":["web.default.svc.cluster.local","web.default","web"],` +
					`"namespace":"default","service":"web"}` + "\n" +
					`{"address":"fd00:10:96::80","names":["web.default.svc.cluster.local","web.default","web"],` +
					`"namespace":"default","service":"web"}`,
			},
			{
				"/hosts?name=dns", 200, `{"address":"10.96.0.10","names":["dns.kube-system.svc.cluster.local","dns.kube-system"],` +
					`"namespace":"kube-system","service":"dns"}`,
			},
			{"/namespaces?name=s", 200, `"staging"`},
			{"/names?name=w", 200, `"default/web"` + "\n" + `"staging/web"`},
			{"/names?name=nothing", 200, ""},
			{"/diff", 200, `{"step":"add a"}` + "\n" + `{"step":"add b"}`},
			{"/plan", 200, `{"step":"add <c>"}`},
			{"/settings", 200, `{"configuration":{"mode":"a"},"flags":{"v":"4"}}`},
			{"/events", 200, ""},
			{"/explain?source=node&destination=Web", 503, "destination \"Web\": want an address or a Service, such as " +
				"10.96.0.10, 10.96.0.10:53/udp, [fd00::a]:80, web, default/web, default/web:80, " +
				"default/web:http or web.default.svc"},
			{"/pods", 404, "404 page not found"},
		} {
			if code, got := ask(t, h, tt.url); code != tt.code || got != tt.want {
				t.Errorf("%s: %d %s\nwant %d %s", tt.url, code, got, tt.code, tt.want)
			}
		}
		trouble = errors.New("read kernel state: no")
		if code, got := ask(t, h, "/diff"); code != 503 || got != "read kernel state: no" {
			t.Errorf("a comparison that fails: %d %s", code, got)
		}
		var s Status
		if _, got := ask(t, h, "/status"); json.Unmarshal([]byte(got), &s) != nil || s.Counts.Services != 3 {
			t.Errorf("the status is %s", got)
		}
		for _, query := range []string{"/services?", "/nodeports?"} {
			_, all := ask(t, h, query+"name=default/web")
			if _, got := ask(t, h, query+"selector=app=web"); got != all || got == "" {
				t.Errorf("%s of Services with a label: %s, want %s", query, got, all)
			}
		}
		if _, got := ask(t, h, "/nodeports"); strings.Count(got, "\n") != 2 {
			t.Errorf("the node ports are %s, want a line for each of 3", got)
		}
	})
}

func TestErrorAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		defer close(hold)
		w := start(t, func(w *world, _ *Options) { w.kernel.hold = hold })
		w.load() // the first write takes long
		h := w.Handler()
		for url, want := range map[string]string{
			"/services": "503 " + errBusy.Error(),
			"/names":    "503 " + errBusy.Error(),
		} {
			if code, got := ask(t, h, url); fmt.Sprint(code, " ", got) != want {
				t.Errorf("%s: %d %s, want %s", url, code, got, want)
			}
		}
	})
}

// Comparisons wait for each other, and not for ever.
func TestOneComparisonAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		under, most, takes := 0, 0, time.Second
		w := start(t, func(_ *world, o *Options) {
			o.Diff = func(context.Context) (plane.Plan, error) {
				under++
				most = max(most, under)
				time.Sleep(takes)
				under--
				return made(""), nil
			}
		})
		w.load()
		h := w.Handler()
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				if code, said := ask(t, h, "/diff"); code != 200 {
					t.Errorf("%d %s", code, said)
				}
			})
		}
		all.Wait()
		if most != 1 {
			t.Errorf("%d comparisons at once, want 1", most)
		}
		takes = time.Hour
		all.Go(func() { ask(t, h, "/diff") })
		synctest.Wait()
		if code, said := ask(t, h, "/diff"); code != 503 || said != errDiffs.Error() {
			t.Errorf("behind one that does not end: %d %s", code, said)
		}
		all.Wait()
	})
}

// Many look while the loop writes; nobody sees half of anything.
func TestManyQueriesDuringWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.load()
		h := w.Handler()
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				for range 50 {
					_, said := ask(t, h, []string{"/services", "/backends?name=default/web", "/status", "/nodeports"}[i%4])
					for line := range strings.Lines(said) {
						if !json.Valid([]byte(line)) {
							t.Errorf("not JSON: %s", line)
						}
					}
				}
			})
		}
		all.Go(func() {
			for i := range 200 {
				w.store.SetService(&cluster.Service{
					Name: name("default", "web"), ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.80")},
					Ports: []cluster.ServicePort{{Name: "http", Protocol: cluster.TCP, Port: uint16(1000 + i)}},
				})
			}
		})
		all.Wait()
		synctest.Wait()
		if got := must(w.Services(t.Context(), Filter{Namespace: "default", Name: "web"})); got[0].Ports[0].Port != 1199 {
			t.Errorf("in the end: %+v", got)
		}
	})
}

// crowded is a loop that does nothing, with very many Services, of which some are
// pending and some refused. It returns copies of one View, as proxy.Loop does.
type crowded struct{ view proxy.View }

func (c crowded) View(context.Context) (proxy.View, error) { return c.view, nil }

func newCrowded(n int) crowded {
	store, compiler := cluster.NewStore(), route.NewCompiler(route.Options{})
	c := crowded{proxy.View{Listed: true, Pending: proxy.NewPending(), Refused: map[cluster.Name]error{}}}
	for i := range n {
		name := name("default", fmt.Sprint("service-", i))
		store.SetService(&cluster.Service{
			Name: name, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})},
			Ports: []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80}},
		})
		if i%3 == 0 {
			c.view.Refused[name] = errors.New("no such match")
		}
	}
	change, _ := compiler.Compile(store.Take())
	c.view.Routes, c.view.Pending = compiler.Snapshot(), proxy.NewPending(change.Touched...)
	return c
}

// BenchmarkQuestions is what questions cost who asks. None of it is in the loop.
func BenchmarkQuestions(b *testing.B) {
	loop := newCrowded(100_000)
	i := New(Options{
		Loop: loop, Store: cluster.NewStore(), History: NewHistory(), Sizes: sizes.New().Sizes,
		Status: func(context.Context) Status { return Status{} },
	})
	for what, question := range questions(b.Context()) {
		b.Run(what, func(b *testing.B) {
			for b.Loop() {
				question(i)
			}
		})
	}
}

func questions(ctx context.Context) map[string]func(*Inspector) {
	return map[string]func(*Inspector){
		"all services": func(i *Inspector) { _, _ = i.Services(ctx, Filter{}) },
		"one service":  func(i *Inspector) { _, _ = i.Services(ctx, Filter{Namespace: "default", Name: "service-7"}) },
		"names": func(i *Inspector) {
			_, _ = i.names(httptest.NewRequestWithContext(ctx, http.MethodGet, "/names?name=serv", http.NoBody))
		},
		"the status": func(i *Inspector) { i.Status(ctx) },
	}
}
