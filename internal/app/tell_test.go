package app

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/follow/sizes"
	"github.com/sluice-proxy/sluice/internal/inspect"
	"github.com/sluice-proxy/sluice/internal/metrics"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
)

// `sluice status` and the metrics say the same of what was repaired.
func TestEverybodyCountsTheSameRepairs(t *testing.T) {
	history := inspect.NewHistory()
	counts := metrics.New(metrics.Options{Mode: Modes()[0], Families: []route.Family{route.IPv4}})
	for _, s := range []proxy.Sync{
		{Cause: proxy.Start, Steps: 90},
		{Cause: proxy.Change, Steps: 3},
		{Cause: proxy.Configuration, Steps: 4},
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
		Loop: still{view: proxy.View{Table: &route.Table{}}}, Store: cluster.NewStore(), History: history, Sizes: sizes.New().Sizes,
		Status: func(context.Context) inspect.Status { return inspect.Status{} },
	}).Status(t.Context())
	told := map[string]bool{}
	for _, r := range status.Repairs {
		told[fmt.Sprintf("sluice_repairs_total{cause=%q} %d", r.Cause, r.Count)] = true
	}
	answer := httptest.NewRecorder()
	counts.Handler().ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
	for line := range strings.Lines(answer.Body.String()) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "sluice_repairs_total") && !strings.HasSuffix(line, " 0") != told[line] {
			t.Errorf("the metrics say %s, the status %+v", line, status.Repairs)
		}
		delete(told, line)
	}
	if len(told) > 0 || len(status.Repairs) != 3 {
		t.Errorf("the status says %+v, want 3 of which all are in the metrics; only there: %v", status.Repairs, told)
	}
}
