package web

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/health"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
)

type verdict health.Verdict

// constantly returns the same Verdict at each call.
func (v verdict) constantly() health.Verdict { return health.Verdict(v) }

// counts are the answers that were counted.
type counts []string

func (c *counts) add(page string, code int) { *c = append(*c, fmt.Sprint(page, " ", code)) }

func well(changes ...func(*verdict)) verdict {
	v := verdict{
		Now:         time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC),
		LastUpdated: time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC),
		Started:     true, Live: true, Eligible: true,
		Families: route.Families(),
	}
	for _, change := range changes {
		change(&v)
	}
	return v
}

const (
	now    = `"2026-01-02T03:04:05.0000006Z"`
	synced = `"2026-01-02T03:00:00Z"`
	never  = `"0001-01-01T00:00:00Z"`
)

// status returns the part of a body about both families.
func status(updated string, healthy bool) string {
	return fmt.Sprintf(`"status":{"IPv4":{"lastUpdated":%[1]s,"healthy":%[2]v},`+
		`"IPv6":{"lastUpdated":%[1]s,"healthy":%[2]v}}`, updated, healthy)
}

func TestHealth(t *testing.T) {
	starting := func(v *verdict) { v.Started, v.LastUpdated, v.Families = false, time.Time{}, nil }
	overdue := func(v *verdict) { v.Live = false }
	leaving := func(v *verdict) { v.Eligible = false }
	waiting := func(v *verdict) { v.Waiting = `HNS network "l2" does not exist` }
	contested := func(v *verdict) {
		v.Contest = proxy.Contest{Since: v.Now, Repairs: 12, What: "table", By: "nft (thread 812)"}
	}
	for _, tt := range []struct {
		name           string
		verdict        verdict
		healthz, livez int
		ready, live    string
	}{
		{
			"S-256 S-257 S-259 all is well", well(), 200, 200,
			`{"lastUpdated":` + now + `,"currentTime":` + now + `,"nodeEligible":true,"healthy":true,` + status(synced, true) +
				`}`,
			`{"lastUpdated":` + now + `,"currentTime":` + now + `,"healthy":true,` + status(synced, true) + `}`,
		},
		{
			"S-254 L-14 fresh start, initial lists pending: alive, and not ready", well(starting), 503, 200,
			`{"lastUpdated":` + never + `,"currentTime":` + now + `,"nodeEligible":true,"healthy":false,` +
				`"reason":"the first complete write to the kernel has not finished"}`,
			`{"lastUpdated":` + now + `,"currentTime":` + now + `,"healthy":true}`,
		},
		{
			"S-255 a change is overdue", well(overdue), 503, 503,
			`{"lastUpdated":` + synced + `,"currentTime":` + now + `,"nodeEligible":true,"healthy":false,` +
				`"reason":"a write is overdue",` + status(synced, false) + `}`,
			`{"lastUpdated":` + synced + `,"currentTime":` + now + `,"healthy":false,` + status(synced, false) + `}`,
		},
		{ // one write is for both families: none can be stuck alone
			"S-261 writes fail: no family is healthy", well(overdue, leaving), 503, 503,
			`{"lastUpdated":` + synced + `,"currentTime":` + now + `,"nodeEligible":false,"healthy":false,` +
				`"reason":"a write is overdue",` + status(synced, false) + `}`,
			`{"lastUpdated":` + synced + `,"currentTime":` + now + `,"healthy":false,` + status(synced, false) + `}`,
		},
		{
			"another program keeps removing rules: alive, and not ready", well(contested), 503, 200,
			`{"lastUpdated":` + synced + `,"currentTime":` + now + `,"nodeEligible":true,"healthy":false,` +
				`"reason":"nft (thread 812) repeatedly changed the rules of Sluice (last: table): rules were repaired 12 times",` +
				status(synced, false) + `}`,
			`{"lastUpdated":` + now + `,"currentTime":` + now + `,"healthy":true,` + status(synced, true) + `}`,
		},
		{
			"the data plane waits: alive, and not ready", well(waiting), 503, 200,
			`{"lastUpdated":` + synced + `,"currentTime":` + now + `,"nodeEligible":true,"healthy":false,` +
				`"reason":"HNS network \"l2\" does not exist",` + status(synced, false) + `}`,
			`{"lastUpdated":` + now + `,"currentTime":` + now + `,"healthy":true,` + status(synced, true) + `}`,
		},
		{
			"S-258 S-260 the node leaves", well(leaving), 503, 200,
			`{"lastUpdated":` + synced + `,"currentTime":` + now + `,"nodeEligible":false,"healthy":true,` +
				`"reason":"the Node is leaving the cluster, or unknown",` + status(synced, true) + `}`,
			`{"lastUpdated":` + now + `,"currentTime":` + now + `,"healthy":true,` + status(synced, true) + `}`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var c counts
			h := Health(tt.verdict.constantly, c.add)
			for _, one := range []struct {
				request string
				code    int
				body    string
			}{{"GET /healthz", tt.healthz, tt.ready}, {"POST /livez?x=y", tt.livez, tt.live}} {
				r := ask(t, h, one.request)
				if got := bodyOf(t, r); got != one.body || r.StatusCode != one.code {
					t.Errorf("%s: got %d\n%s\nwant %d\n%s", one.request, r.StatusCode, got, one.code, one.body)
				}
				if got := fmt.Sprint(r.Header); got != "map[Content-Type:[application/json] X-Content-Type-Options:[nosniff]]" {
					t.Errorf("%s: headers %s", one.request, got)
				}
			}
			want := fmt.Sprintf("[healthz %d livez %d]", tt.healthz, tt.livez)
			if got := fmt.Sprint(c); got != want {
				t.Errorf("counted %s, want %s", got, want)
			}
		})
	}
}

func TestHealthHasTwoPages(t *testing.T) {
	t.Run("S-262 all else is not found, and not counted", func(t *testing.T) {
		var c counts
		h := Health(well().constantly, c.add)
		for _, path := range []string{"/foo", "/", "/healthz/", "/livez/x", "/metrics"} {
			if r := ask(t, h, "GET "+path); r.StatusCode != http.StatusNotFound {
				t.Errorf("%s: got %d", path, r.StatusCode)
			}
		}
		if len(c) != 0 {
			t.Errorf("counted %v", c)
		}
	})
}
