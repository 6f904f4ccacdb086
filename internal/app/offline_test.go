package app

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/answer/explain"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
)

const oneService = `{kind: Service, apiVersion: v1, metadata: {name: web, namespace: default},
 spec: {clusterIP: 10.96.0.80, ports: [{name: http, port: 80}]}}`

// With manifests the host stands in for the Node.
func TestExplainFromManifests(t *testing.T) {
	q, err := explain.Parse("127.0.0.1", "default/web:http")
	if err != nil {
		t.Fatal(err)
	}
	got, err := Explain(t.Context(), Options{
		Kinds: Kinds(),
		Config: &config.Config{
			Mode: Modes(Kinds())[0], Manifests: []string{"-"}, NodeName: "one",
			Detector: route.DetectorOptions{Kind: route.DetectClusterCIDR},
		},
		Log: slog.New(slog.DiscardHandler), Stdin: strings.NewReader(oneService),
	}, q)
	if err != nil {
		t.Fatal(err)
	}
	const want = "127.0.0.1 to 10.96.0.80:80/tcp: refused at once\n" +
		"  Why         the Service has no endpoints\n" +
		"  Service     default/web, port http\n" +
		"  Reached by  clusterIP 10.96.0.80:80/tcp\n" +
		"  Client      this node, as 127.0.0.1\n" +
		"  Path        map fronts -> chain rejected\n"
	if got := text.Printed(got); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Weights count in modes that have them, and nowhere else. One scheduler of IPVS respects only 0.
func TestExplainWeights(t *testing.T) {
	const byWeights = "balanced over 2 backends, by their weights"
	const alike = "balanced over 2 backends, each with the same chance"
	for _, c := range []struct{ mode, scheduler, weights, want string }{
		{"ipvs", "", "10.244.1.5=3", byWeights},
		{"ipvs", "", "10.244.1.5=3", "3/4 10.244.1.5:8080"},
		{"ipvs", "", "10.244.1.5=0", "0/1 10.244.1.5:8080"},
		{"ipvs", "", "10.244.1.5=0, 10.244.1.6=2", byWeights},
		{"ipvs", "", "10.244.1.5=0, 10.244.1.6=0", "all backends have weight 0 and get no new connections"},
		{"ipvs", "", "10.244.1.5=1", alike},
		{"ipvs", "rr", "10.244.1.5=3", byWeights},
		{"ipvs", "lc", "10.244.1.5=3", "3/4 10.244.1.5:8080"},
		{"ipvs", "dh", "10.244.1.5=3", alike},
		{"ipvs", "dh", "10.244.1.5=0", "0/1 10.244.1.5:8080"},
		{"ipvs", "sh", "10.244.1.5=3", "by a hash of the client, about by weight"},
		{"ipvs", "maglev", "10.244.1.5=3", "75.0% 10.244.1.5:8080"},
		{"ipvs", "wlc", "10.244.1.5=3", "3/4 10.244.1.5:8080"},
		{"nftables", "", "10.244.1.5=3", "3/4 10.244.1.5:8080"},
		{"nftables", "wrr", "10.244.1.5=0", "0/1 10.244.1.5:8080"},
		{"nftables", "", "10.244.1.5=0, 10.244.1.6=0", "all backends have weight 0 and get no new connections"},
		{"nftables", "maglev", "", "to the one that a hash of the client chooses"},
		{"iptables", "", "10.244.1.5=3", "3/4 10.244.1.5:8080"},
		{"userspace", "", "10.244.1.5=3", "3/4 10.244.1.5:8080"},
		{"userspace", "rr", "10.244.1.5=3", "3/4 10.244.1.5:8080"},
		{"userspace", "rr", "10.244.1.5=3", byWeights},
		{"userspace", "lc", "10.244.1.5=3", "3/4 10.244.1.5:8080"},
		{"userspace", "sh", "10.244.1.5=0, 10.244.1.6=2", "2/2 10.244.1.6:8080"},
		{"userspace", "lc", "10.244.1.5=0, 10.244.1.6=0", "all backends have weight 0 and get no new connections"},
		{"userspace", "lc", "", alike},
	} {
		q, err := explain.Parse("10.9.9.9", "10.96.0.80:80")
		if err != nil {
			t.Fatal(err)
		}
		got, err := Explain(t.Context(), Options{
			Kinds: Kinds(), Log: slog.New(slog.DiscardHandler), Stdin: strings.NewReader(weighted(c.scheduler, c.weights)),
			Config: &config.Config{
				Mode: c.mode, Userspace: bound(c.mode), Manifests: []string{"-"}, NodeName: "one",
				Detector: route.DetectorOptions{Kind: route.DetectClusterCIDR},
			},
		}, q)
		if err != nil || !strings.Contains(text.Printed(got), c.want) {
			t.Errorf("mode %s, scheduler %q, %s: %v\n%s\nwant %s", c.mode, c.scheduler, c.weights, err, text.Printed(got),
				c.want)
		}
	}
}

// bound returns the settings of mode userspace; none in other modes.
func bound(mode string) config.Userspace {
	if mode != "userspace" {
		return config.Userspace{}
	}
	return config.Userspace{Bind: config.BindRules}
}

// weighted is webService with a scheduler, and two endpoints and weights for them.
func weighted(scheduler, weights string) string {
	text := strings.Replace(webService, "name: web,", `name: web, annotations: {sluice-proxy.github.io/scheduler: "`+
		scheduler+`", sluice-proxy.github.io/weights: "`+weights+`"},`, 1)
	return strings.Replace(text, "endpoints: [", "endpoints: [{addresses: [10.244.1.6]}, ", 1)
}

// fixedLoop is a loop that always returns the same View.
type fixedLoop struct {
	view proxy.View
	err  error
}

func (s fixedLoop) View(context.Context) (proxy.View, error) { return s.view, s.err }
