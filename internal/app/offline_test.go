package app

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/explain"
	"github.com/sluice-proxy/sluice/internal/proxy"
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
		Kinds:  Kinds(),
		Config: &config.Config{Mode: Modes(Kinds())[0], Manifests: []string{"-"}, NodeName: "one", Detector: config.Detector{Mode: config.DetectClusterCIDR}},
		Log:    slog.New(slog.DiscardHandler), Stdin: strings.NewReader(oneService),
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
	if got.String() != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// fixedLoop is a loop that always returns the same View.
type fixedLoop struct {
	view proxy.View
	err  error
}

func (s fixedLoop) View(context.Context) (proxy.View, error) { return s.view, s.err }
