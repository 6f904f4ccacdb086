package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/answer/explain"
	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane/nftables"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
)

// still is a loop that nothing happens in.
type still struct {
	view proxy.View
	err  error
}

func (s still) View(context.Context) (proxy.View, error) { return s.view, s.err }

// explaining returns an Inspector of a node with one Service.
func explaining(loop still) *Inspector {
	store := cluster.NewStore()
	store.SetService(&cluster.Service{
		Name:       cluster.Name{Namespace: "default", Name: "web"},
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.80")},
		Ports:      []cluster.ServicePort{{Name: "http", Protocol: cluster.TCP, Port: 80}},
	})
	compiler := route.NewCompiler(route.Options{})
	compiler.Compile(store.Take())
	loop.view.Routes = compiler.Snapshot()
	return New(Options{
		Loop: loop, Store: store, Plane: nftables.Kind().Facts,
		Local: func(context.Context) ([]netip.Addr, error) { return nil, nil },
	})
}

func TestExplainOverHTTP(t *testing.T) {
	for _, tt := range []struct {
		name, query string
		loop        still
		code        int
		want        string // the body of an error, or the headline and the notes
	}{
		{
			"an answer", "source=node&destination=default/web:http",
			still{view: proxy.View{Listed: true, Started: true}},
			http.StatusOK,
			"refused",
		},
		{
			"the kernel refuses", "source=node&destination=default/web:http",
			still{view: proxy.View{Listed: true, Started: true, Err: errors.New("no space\nfor rules")}},
			http.StatusOK,
			"refused; these rules may not be in the kernel yet: the last write failed: no space; for rules",
		},
		{
			"the kernel refuses this one", "source=node&destination=default/web:http",
			still{view: proxy.View{Listed: true, Started: true, Refused: map[cluster.Name]error{
				{Namespace: "default", Name: "web"}: errors.New("no such match"),
				{Namespace: "default", Name: "db"}:  errors.New("why not"),
			}}},
			http.StatusOK,
			"refused; not in force: the kernel rejects the rules of default/web: no such match",
		},
		{
			"just started", "source=node&destination=default/web:http",
			still{view: proxy.View{Listed: true}},
			http.StatusOK,
			"refused; these rules may not be in the kernel yet: Sluice has written nothing since it started",
		},
		{
			"a bad question", "source=10.9&destination=default/web",
			still{},
			http.StatusServiceUnavailable,
			`source "10.9": want an IP address, a pod such as default/client, or "node" for this node itself`,
		},
		{
			"the loop ends", "source=node&destination=default/web",
			still{err: context.Canceled},
			http.StatusServiceUnavailable,
			errBusy.Error(),
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, got := ask(t, explaining(tt.loop).Handler(), "/explain?"+tt.query)
			if code == http.StatusOK {
				var a explain.Answer
				if err := json.Unmarshal([]byte(got), &a); err != nil {
					t.Fatal(err)
				}
				got = strings.Join(append([]string{string(a.Cases[0].Verdict)}, a.Notes...), "; ")
			}
			if code != tt.code || got != tt.want {
				t.Errorf("got %d %s, want %d %s", code, got, tt.code, tt.want)
			}
		})
	}
}

func TestErrorOfLocalAddresses(t *testing.T) {
	i := explaining(still{view: proxy.View{Listed: true}})
	i.opt.Local = func(context.Context) ([]netip.Addr, error) { return nil, errors.New("list addresses: not today") }
	if code, got := ask(t, i.Handler(), "/explain?source=node&destination=default/web"); code == http.StatusOK ||
		got != "list addresses: not today" {
		t.Errorf("got %d %s", code, got)
	}
}

// changing is a loop that changes a Service after each View that it returns.
type changing struct {
	compiler *route.Compiler
	store    *cluster.Store
	port     uint16
}

func (c *changing) View(context.Context) (proxy.View, error) {
	v := proxy.View{Routes: c.compiler.Snapshot(), Listed: true, Started: true}
	c.port++
	c.store.SetService(webAt(c.port))
	c.compiler.Compile(c.store.Take())
	return v, nil
}

func webAt(nodePort uint16) *cluster.Service {
	return &cluster.Service{
		Name: cluster.Name{Namespace: "default", Name: "web"}, Type: cluster.NodePort,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.80")},
		Ports:      []cluster.ServicePort{{Name: "http", Protocol: cluster.TCP, Port: 80, NodePort: nodePort}},
	}
}

// An answer is of one moment, however often the Service changes.
func TestExplainDuringChanges(t *testing.T) {
	loop := &changing{compiler: route.NewCompiler(route.Options{}), store: cluster.NewStore(), port: 999}
	if _, err := loop.View(t.Context()); err != nil {
		t.Fatal(err)
	}
	i := New(Options{
		Loop: loop, Store: loop.store, Plane: nftables.Kind().Facts,
		Local: func(context.Context) ([]netip.Addr, error) { return nil, nil },
	})
	for want := range 3 {
		var answer explain.Answer
		_, got := ask(t, i.Handler(), "/explain?source=node&destination=default/web:http")
		if err := json.Unmarshal([]byte(got), &answer); err != nil || len(answer.Cases) != 1 ||
			!strings.Contains(fmt.Sprint(answer.Notes), fmt.Sprint(1000+want, "/tcp")) {
			t.Errorf("got %s; want one case, and nodePort %d in the notes", got, 1000+want)
		}
	}
}
