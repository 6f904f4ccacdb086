package app

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/event"
	"github.com/sluice-proxy/sluice/internal/metrics"
	"github.com/sluice-proxy/sluice/internal/plane/sizes"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
)

// `sluice status` and the metrics have the same numbers of repairs.
func TestStatusAndMetricsCountTheSameRepairs(t *testing.T) {
	history := inspect.NewHistory()
	counts := metrics.New(metrics.Options{Mode: Modes(Kinds())[0], Families: []route.Family{route.IPv4}})
	for _, s := range []proxy.Sync{
		{Cause: proxy.Start, Steps: 90},
		{Cause: proxy.Change, Steps: 3},
		{Cause: proxy.Failure, Steps: 2},
		{Cause: proxy.ForeignEdit, Steps: 1},
		{Cause: proxy.ForeignEdit},
		{Cause: proxy.ForeignEdit, Steps: 1},
		{Cause: proxy.Request, Steps: 5},
		{Cause: proxy.Period},
	} {
		s.Began = time.Now()
		history.Observe(s)
		counts.Synced(s)
	}
	status := inspect.New(inspect.Options{
		Loop:  fixedLoop{view: proxy.View{Listed: true, Pending: proxy.NewPending()}},
		Store: cluster.NewStore(), History: history, Sizes: sizes.New().Sizes,
		Status: func(context.Context) inspect.Status { return inspect.Status{} },
	}).Status(t.Context())
	inStatus := map[string]bool{}
	for _, r := range status.Repairs {
		inStatus[fmt.Sprintf("sluice_repairs_total{cause=%q} %d", r.Cause, r.Count)] = true
	}
	answer := httptest.NewRecorder()
	counts.Handler().ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
	for line := range strings.Lines(answer.Body.String()) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "sluice_repairs_total") && !strings.HasSuffix(line, " 0") != inStatus[line] {
			t.Errorf("the metrics have %s, the status %+v", line, status.Repairs)
		}
		delete(inStatus, line)
	}
	if len(inStatus) > 0 || len(status.Repairs) != 3 {
		t.Errorf("the status has %+v, want 3, all of them in the metrics; not in the metrics: %v", status.Repairs, inStatus)
	}
}

// The same problem of very many Services takes a few lines in the log and a few Events,
// with a count. Problems of other Services are still reported.
func TestRepeatedProblemsAreSummarized(t *testing.T) {
	store := cluster.NewStore()
	for i := range 3000 {
		store.SetService(&cluster.Service{
			Name:        cluster.Name{Namespace: "shop", Name: fmt.Sprintf("s%04d", i)},
			Created:     time.Unix(int64(10_000-i), 0), // the newest comes first by name
			ClusterIPs:  []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})},
			ExternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
			Ports:       []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80}},
		})
	}
	_, problems := route.NewCompiler(route.Options{}).Compile(store.Take())
	problems = append(problems, route.Problem{
		Object: "Service bank/web", Field: "spec.externalIPs[0]", Value: "x", Reason: "not an IP address",
	})

	var lines bytes.Buffer
	var events []event.Event
	d := Options{Log: slog.New(slog.NewTextHandler(&lines, nil))}.digest(func(e event.Event) {
		events = append(events, e)
	})
	d.Report(problems)
	d.Flush()
	const more = `reason="left out, as it belongs to Service shop/s2999; ` +
		`2988 more such problems in namespace shop" count=2989`
	log := lines.String()
	const want = 10 + 2 // of Services in shop, the others of them, and of bank
	if n := strings.Count(log, "\n"); n != want || !strings.Contains(log, more) ||
		!strings.Contains(log, "Service bank/web") {
		t.Errorf("%d lines, want %d, with the sum of the rest:\n%s", n, want, log)
	}
	last := events[len(events)-1]
	if len(events) != want || !strings.HasSuffix(last.Note, "; 2988 more such problems in namespace shop") ||
		last.Key == "" {
		t.Errorf("%d Events, want %d, with the sum of the rest: %+v", len(events), want, events)
	}
}
