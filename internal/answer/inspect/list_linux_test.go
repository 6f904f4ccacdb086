package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/answer/explain"
	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
)

// listing is one of the lists, as a table and as JSON.
type listing func(w *world, f Filter, wide bool) (table string, items any)

func listings() map[string]listing {
	return map[string]listing{
		"services": func(w *world, f Filter, wide bool) (string, any) {
			list := must(w.Services(w.t.Context(), f))
			return tabulate(list, wide), list
		},
		"backends": func(w *world, f Filter, wide bool) (string, any) {
			list := must(w.Backends(w.t.Context(), f))
			return tabulate(list, wide), list
		},
		"nodeports": func(w *world, f Filter, wide bool) (string, any) {
			list := must(w.NodePorts(w.t.Context(), f))
			return tabulate(list, wide), list
		},
	}
}

// What a person sees of a node, in full.
func TestTables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.load()
		web := Filter{Namespace: "default", Name: "web"}
		for kind, l := range listings() {
			for _, tt := range []struct {
				file   string
				filter Filter
				wide   bool
			}{
				{kind + ".txt", Filter{}, false},
				{kind + "-wide.txt", Filter{}, true},
				{kind + "-web.txt", web, false},
				{kind + "-web-wide.txt", web, true},
			} {
				table, _ := l(w, tt.filter, tt.wide)
				golden(t, tt.file, []byte(table))
			}
			_, items := l(w, web, false)
			said, err := json.MarshalIndent(items, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden(t, kind+"-web.json", append(said, '\n'))
		}
	})
}

// names lists the Services that come out of a filter, with their state.
func names(w *world, f Filter) string {
	var out []string
	for _, s := range must(w.Services(w.t.Context(), f)) {
		out = append(out, s.Namespace+"/"+s.Name+" "+stateText(s.State, s.Reason))
	}
	return strings.Join(out, "\n")
}

func TestFilters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.load()
		for _, tt := range []struct{ name, namespace, want string }{
			{"", "default", "default/empty programmed\ndefault/web programmed"},
			{"", "nowhere", ""},
			{"web", "", "default/web programmed\nstaging/web not programmed: headless"},
			{"web", "staging", "staging/web not programmed: headless"},
			{"staging/outside", "", "staging/outside not programmed: ExternalName"},
			{
				"staging/thief", "staging",
				"staging/thief not programmed: conflict: other Services own all its addresses and ports",
			},
		} {
			f, err := ParseFilter(tt.name, tt.namespace)
			if err != nil {
				t.Fatal(err)
			}
			if got := names(w, f); got != tt.want {
				t.Errorf("%q in %q:\n%s\nwant:\n%s", tt.name, tt.namespace, got, tt.want)
			}
		}
	})
}

// A Service that does not get all it asks for is programmed, and says how much others have.
func TestServicesWithLostClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		done := w.store.Feed()
		for i, name := range []string{"first", "second"} {
			svc := &cluster.Service{
				Name:        cluster.Name{Namespace: "shop", Name: name},
				ClusterIPs:  []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(1 + i)})},
				ExternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
			}
			for port := range uint16(500) {
				svc.Ports = append(svc.Ports, cluster.ServicePort{Name: fmt.Sprint(port), Protocol: cluster.TCP, Port: 1 + port})
			}
			w.store.SetService(svc)
		}
		done()
		synctest.Wait()
		want := "shop/first programmed\nshop/second programmed: conflict: other Services own 500 of its addresses and ports"
		if got := names(w, Filter{}); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		for _, s := range must(w.Services(t.Context(), Filter{Name: "second"})) {
			if s.LeftOut != 500 {
				t.Errorf("%d are left out, want 500", s.LeftOut)
			}
		}
	})
}

func TestInvalidFilters(t *testing.T) {
	for _, tt := range []struct{ name, namespace, want string }{
		{"a/b/c", "", `name "a/b/c": want NAME or NAMESPACE/NAME`},
		{"/b", "", `name "/b": want NAME or NAMESPACE/NAME`},
		{"a/", "", `name "a/": want NAME or NAMESPACE/NAME`},
		{"a/b", "c", `name "a/b" is not in namespace "c"`},
	} {
		if _, err := ParseFilter(tt.name, tt.namespace); err == nil || err.Error() != tt.want {
			t.Errorf("%q in %q: %v, want %s", tt.name, tt.namespace, err, tt.want)
		}
	}
}

func TestUnknownService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.load()
		for _, f := range []Filter{{Namespace: "default", Name: "nothing"}, {Name: "nothing"}} {
			_, services := w.Services(t.Context(), f)
			_, backends := w.Backends(t.Context(), f)
			_, ports := w.NodePorts(t.Context(), f)
			for _, err := range []error{services, backends, ports} {
				want := fmt.Sprintf("no Service %q is known on this node; sluice get services lists them", f)
				if err == nil || err.Error() != want {
					t.Errorf("%v, want %s", err, want)
				}
			}
		}
	})
}

// What the kernel refuses is pending, with the reason, and so is what it has to
// forget; what was written before is still programmed.
func TestReasonOfPendingServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.load()
		w.between(func() { w.kernel.refuse = errors.New("no space") })
		w.store.DeleteService(name("default", "web"))
		w.store.DeleteService(name("staging", "web"))
		w.store.SetService(&cluster.Service{Name: name("default", "new"), Ignored: "headless"})
		synctest.Wait()
		want := "default/empty programmed\n" +
			"default/new pending: no space\n" +
			"default/web pending: to be removed: no space"
		if got := names(w, Filter{Namespace: "default"}); got != want {
			t.Errorf("in default:\n%s\nwant:\n%s", got, want)
		}
		for f, want := range map[Filter]string{
			{Namespace: "default", Name: "web"}: "default/web pending: to be removed: no space",
			{Namespace: "default", Name: "new"}: "default/new pending: no space",
		} {
			if got := names(w, f); got != want {
				t.Errorf("%s: %s, want %s", f, got, want)
			}
		}
		// Its endpoints are not forgotten yet, and nor are its backends.
		if got := len(must(w.Backends(t.Context(), Filter{Namespace: "default"}))); got == 0 {
			t.Error("what is to be removed has no backends")
		}
	})
}

// A Service that the kernel refuses, while it takes the others, is told from those
// that wait, and so are its backends and its NodePorts.
func TestReasonOfRefusedServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		web := name("default", "web")
		w := start(t, func(w *world, _ *Options) {
			w.kernel.refuse = plane.Refused{web: errors.New("line 7: no such match")}
		})
		w.load()
		const why = "not programmed: the kernel rejects its rules: line 7: no such match"
		if got, want := names(w, Filter{Namespace: "default"}), "default/empty programmed\ndefault/web "+why; got != want {
			t.Errorf("in default:\n%s\nwant:\n%s", got, want)
		}
		backends := must(w.Backends(t.Context(), Filter{Namespace: web.Namespace, Name: web.Name}))
		ports := must(w.NodePorts(t.Context(), Filter{Namespace: web.Namespace, Name: web.Name}))
		if len(backends) == 0 || len(ports) == 0 {
			t.Fatalf("%d backends, %d NodePorts, want some", len(backends), len(ports))
		}
		for _, b := range backends {
			if got := stateText(b.State, b.Reason); got != why {
				t.Errorf("backend %s: %s, want %s", b.Address, got, why)
			}
		}
		for _, p := range ports {
			if got := stateText(p.State, p.Reason); got != why {
				t.Errorf("NodePort %d: %s, want %s", p.Port, got, why)
			}
		}
		if s := w.Status(t.Context()); s.Refused != 1 || s.Pending != 0 || s.Error != "" {
			t.Errorf("%d refused, %d pending, error %q; want 1, none, no error", s.Refused, s.Pending, s.Error)
		}

		// The next attempt succeeds.
		w.between(func() { w.kernel.refuse = nil })
		time.Sleep(time.Hour)
		synctest.Wait()
		if got, want := names(w, Filter{Namespace: web.Namespace, Name: web.Name}), "default/web programmed"; got != want {
			t.Errorf("when it is taken: %s, want %s", got, want)
		}
		if s := w.Status(t.Context()); s.Refused != 0 || s.Pending != 0 {
			t.Errorf("%d refused, %d pending, want none", s.Refused, s.Pending)
		}
	})
}

func TestBeforeTheFirstSyncAllIsPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, func(w *world, _ *Options) { w.kernel.refuse = errors.New("not yet") })
		w.load()
		dns := Filter{Namespace: "kube-system", Name: "dns"}
		if got, want := names(w, dns), "kube-system/dns pending: not yet"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}

// A number asks for the node ports that have it, of any Service.
func TestNodePortsByNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.load()
		all := must(w.NodePorts(t.Context(), Filter{}))
		one := all[0]
		want := slices.DeleteFunc(slices.Clone(all), func(n NodePort) bool { return n.Port != one.Port })
		asked := fmt.Sprint(one.Port)
		for _, f := range []Filter{{Name: asked}, {Namespace: one.Namespace, Name: asked}} {
			if got := must(w.NodePorts(t.Context(), f)); !reflect.DeepEqual(got, want) || len(got) == len(all) {
				t.Errorf("%s: %+v, want %+v", f, got, want)
			}
		}
		if _, err := w.NodePorts(t.Context(), Filter{Namespace: "nowhere", Name: asked}); err == nil {
			t.Errorf("node port %s is found in a namespace that does not have it", asked)
		}
	})
}

// Loopback addresses are told where they serve node ports.
func TestWhichAddressesServeNodePorts(t *testing.T) {
	for _, tt := range []struct {
		ports route.NodePorts
		want  string // of IPv4, of IPv6
	}{
		{route.NodePorts{All4: true, All6: true, All127: true}, "all; all but loopback"},
		{route.NodePorts{All4: true, All6: true, Addrs: addrs("127.0.0.1")}, "all and 127.0.0.1; all but loopback"},
		{route.NodePorts{Addrs: addrs("127.0.0.1", "192.168.0.2")}, "127.0.0.1,192.168.0.2; none"},
	} {
		var got []string
		for _, f := range route.Families() {
			s := &selection{View: explain.View{View: proxy.View{
				Routes: &route.Snapshot{Host: route.Host{NodePorts: tt.ports}}, Pending: proxy.NewPending(),
			}}}
			svc := &route.Service{
				Ports: []route.Port{{Family: f, Frontends: []route.Frontend{{Kind: route.NodePort, Port: 30080}}}},
			}
			n := s.nodePort(svc, &svc.Ports[0], &svc.Ports[0].Frontends[0])
			got = append(got, n.addresses())
		}
		if got := strings.Join(got, "; "); got != tt.want {
			t.Errorf("%+v: %s, want %s", tt.ports, got, tt.want)
		}
	}
}

func addrs(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range texts {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

// While the loop is in a long write nobody waits for ever.
func TestErrorWhileTheLoopIsBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		w := start(t, func(w *world, _ *Options) { w.kernel.hold = hold })
		w.load()
		ctx, cancel := context.WithTimeout(t.Context(), answerTime)
		defer cancel()
		if _, err := w.Services(ctx, Filter{}); !errors.Is(err, errBusy) {
			t.Errorf("%v, want that it is busy", err)
		}
		s := w.Status(t.Context())
		if s.Busy == "" {
			t.Error("the status does not say that the loop is busy")
		}
		close(hold)
		synctest.Wait()
		before := w.Status(t.Context())
		if before.Busy != "" || before.Counts.Services == 0 {
			t.Errorf("then it is busy: %q, with %+v in the kernel", before.Busy, before.Counts)
		}
		// What is in the kernel is known during a write as well.
		w.kernel.hold = make(chan struct{})
		w.store.DeleteService(name("default", "web"))
		synctest.Wait()
		if s := w.Status(t.Context()); s.Busy == "" || s.Counts != before.Counts {
			t.Errorf("during a write %+v are in the kernel (busy: %q), want %+v", s.Counts, s.Busy, before.Counts)
		}
	})
}

// namesFor returns the names that are offered for the beginning of one.
func namesFor(w *world, f Filter) []string {
	query := url.Values{"namespace": {f.Namespace}, "name": {f.Name}}
	target := "/names?" + query.Encode()
	return must(w.names(httptest.NewRequestWithContext(w.t.Context(), http.MethodGet, target, http.NoBody)))
}

func TestNamesForCompletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.load()
		for f, want := range map[Filter]string{
			{Name: "we"}:                        "[default/web staging/web]",
			{Name: "st"}:                        "[staging/outside staging/thief staging/web]",
			{Name: "staging/t"}:                 "[staging/thief]",
			{Name: "stag/t"}:                    "[]",
			{Namespace: "default"}:              "[default/empty default/web]",
			{Namespace: "default", Name: "e"}:   "[default/empty]",
			{Namespace: "default", Name: "def"}: "[]",
		} {
			if got := namesFor(w, f); fmt.Sprint(got) != want {
				t.Errorf("names that begin with %q: %v, want %s", f, got, want)
			}
		}
		for i := range 2 * maxNames {
			w.store.SetService(&cluster.Service{Name: name("many", fmt.Sprint(i))})
		}
		synctest.Wait()
		if got := namesFor(w, Filter{Namespace: "many"}); len(got) != maxNames {
			t.Errorf("%d names are offered, want %d", len(got), maxNames)
		}
	})
}
