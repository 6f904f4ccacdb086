package app

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/explain"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
)

const oneService = `{kind: Service, apiVersion: v1, metadata: {name: web, namespace: default},
 spec: {clusterIP: 10.96.0.80, ports: [{name: http, port: 80}]}}`

// From files the host itself stands in for the node.
func TestExplainFromManifests(t *testing.T) {
	q, err := explain.Parse("127.0.0.1", "default/web:http")
	if err != nil {
		t.Fatal(err)
	}
	got, err := Explain(t.Context(), Options{
		Config: &config.Config{Mode: Modes()[0], Manifests: []string{"-"}, NodeName: "one", Detector: config.Detector{Mode: config.DetectClusterCIDR}},
		Log:    slog.New(slog.DiscardHandler), Stdin: strings.NewReader(oneService),
	}, q)
	if err != nil {
		t.Fatal(err)
	}
	const want = "127.0.0.1 to 10.96.0.80:80/tcp: refused at once\n" +
		"  Why         the Service has no endpoints\n" +
		"  Service     default/web, port http\n" +
		"  Reached by  clusterIP 10.96.0.80:80/tcp\n" +
		"  Client      this node, as 127.0.0.1\n"
	if got.String() != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

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

func explainer(loop still) Explainer {
	store := cluster.NewStore()
	store.SetService(&cluster.Service{
		Name:       cluster.Name{Namespace: "default", Name: "web"},
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.80")},
		Ports:      []cluster.ServicePort{{Name: "http", Protocol: cluster.TCP, Port: 80}},
	})
	loop.view.Compiler = route.NewCompiler(route.Options{})
	loop.view.Compiler.Compile(store.Take())
	return Explainer{
		Loop: loop, Store: store, Plane: explain.Nftables(),
		Local: func(context.Context) ([]netip.Addr, error) { return nil, nil },
	}
}

func TestExplainerAnswersOverHTTP(t *testing.T) {
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
			explainer(tt.loop).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/explain?"+tt.query, nil))
			got := strings.TrimSpace(w.Body.String())
			if w.Code == http.StatusOK {
				var a explain.Answer
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

func TestExplainerTellsThatAddressesAreUnknown(t *testing.T) {
	e := explainer(still{})
	e.Local = func(context.Context) ([]netip.Addr, error) { return nil, errors.New("list addresses: not today") }
	if _, err := e.Ask(t.Context(), explain.Question{}); err == nil || err.Error() != "list addresses: not today" {
		t.Errorf("got %v", err)
	}
}
