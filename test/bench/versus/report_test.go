//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The report has a table for each size with the ratios to Sluice, and one of the
// growth with the size.
func TestReport(t *testing.T) {
	when := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var b strings.Builder
	err := printReport(&b, []*result{
		{Services: 2000, Proxy: "iptables", Versions: "v1", When: when, NotReached: "everything: not within 1s"},
		{Services: 1000, Proxy: "nftables", Versions: "v1", When: when, Values: values(300*time.Millisecond, 8, 2*time.Second)},
		{Services: 2000, Proxy: "sluice", Versions: "v0", When: when, Values: values(3*time.Millisecond, 20, 0), Heap: "1 MB of maps"},
		{Services: 1000, Proxy: "sluice", Versions: "v0", When: when, Values: values(2*time.Millisecond, 20, 400*time.Microsecond)},
	})
	if err != nil {
		t.Fatal(err)
	}
	const want = `### 1000 Services of 3 endpoints

| | Sluice | kube-proxy nftables |
|---|---:|---:|
| one endpoint change: API write to first new connection, p50 | 2.0 ms | 300 ms (150x) |
| — n | 20 | 8 |
| — CPU for each | 400 µs | 2.00 s (5000x) |

* Sluice: v0, measured 2026-01-02.
* kube-proxy nftables: v1, measured 2026-01-02.

### 2000 Services of 3 endpoints

| | Sluice | kube-proxy iptables |
|---|---:|---:|
| one endpoint change: API write to first new connection, p50 | 3.0 ms |  |
| — n | 20 |  |

* Sluice: v0, measured 2026-01-02.
* kube-proxy iptables: v1, measured 2026-01-02. **Not reached**: everything: not within 1s.

### Sluice by number of Services

| | 1000 | 2000 | last / first |
|---|---:|---:|---:|
| one endpoint change: API write to first new connection, p50 | 2.0 ms | 3.0 ms | 1.50 |

` + "### Where the memory of Sluice is with 2000 Services\n\n```\n1 MB of maps\n```\n\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("the report differs (-want, +got):\n%s", diff)
	}
}

func values(p50 time.Duration, n int, cpu time.Duration) map[string]float64 {
	r := result{Values: map[string]float64{"change.p50": float64(p50)}}
	r.count("change.n", n)
	r.duration("change.cpu", cpu)
	return r.Values
}

func TestSpread(t *testing.T) {
	var took []time.Duration
	for i := range 200 {
		took = append(took, time.Duration(200-i)) // 200 to 1
	}
	r := &result{Values: map[string]float64{}}
	r.spread("x", took)
	r.spread("none", nil)
	want := map[string]float64{"x.p50": 101, "x.p90": 181, "x.p99": 199, "x.max": 200, "x.n": 200}
	if diff := cmp.Diff(want, r.Values); diff != "" {
		t.Error(diff)
	}
}

func TestNumberFormats(t *testing.T) {
	for want, d := range map[string]time.Duration{
		"12.5 s": 12500 * time.Millisecond, "1.25 s": 1250 * time.Millisecond, "295 ms": 295 * time.Millisecond,
		"2.9 ms": 2900 * time.Microsecond, "45 µs": 45 * time.Microsecond,
	} {
		if got := duration(float64(d)); got != want {
			t.Errorf("%v is %q, want %q", d, got, want)
		}
	}
	for want, ratio := range map[string]float64{"9.4x": 9.42, "27x": 27.3} {
		if got := times(ratio); got != want {
			t.Errorf("%v is %q, want %q", ratio, got, want)
		}
	}
}

// Runs of different parts are merged. A value that is measured again replaces
// the old one.
func TestMerge(t *testing.T) {
	file := filepath.Join(t.TempDir(), "results.json")
	for _, r := range []*result{
		{Services: 1, Proxy: "sluice", Values: map[string]float64{"idle": 1, "start.cpu": 3}, NotReached: "once"},
		{Services: 1, Proxy: "iptables"},
		{Services: 2, Proxy: "sluice"},
		{Services: 1, Proxy: "sluice", Values: map[string]float64{"idle": 2, "churn.n": 4}, Heap: "h"},
	} {
		if err := save(file, r); err != nil {
			t.Fatal(err)
		}
	}
	got, err := load(file)
	if err != nil {
		t.Fatal(err)
	}
	want := []*result{
		{Services: 1, Proxy: "sluice", Values: map[string]float64{"idle": 2, "start.cpu": 3, "churn.n": 4}, Heap: "h"},
		{Services: 1, Proxy: "iptables"},
		{Services: 2, Proxy: "sluice"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the results differ (-want, +got):\n%s", diff)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := load(file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a broken file: %v", err)
	}
	if err := save(file, &result{}); err == nil {
		t.Error("a broken file was written over")
	}
}

func TestConfigurations(t *testing.T) {
	for name, want := range map[string][]string{
		"sluice":         {"mode: nftables", `kubeconfig: "/k"`, "min: 0"},
		"iptables":       {"mode: iptables"},
		"iptables-eager": {"mode: iptables", "iptables: {minSyncPeriod: 1ms}"},
		"nftables-eager": {"mode: nftables", "nftables: {minSyncPeriod: 1ms}"},
		"ipvs-eager":     {"mode: ipvs", "ipvs: {minSyncPeriod: 1ms}"},
	} {
		for _, k := range kinds() {
			if k.name != name {
				continue
			}
			text := k.config("/k")
			for _, word := range want {
				if !strings.Contains(text, word) {
					t.Errorf("%s: no %q in\n%s", name, word, text)
				}
			}
			if eager := strings.Contains(text, "minSyncPeriod"); eager != (k.minSync != "") {
				t.Errorf("%s: minSyncPeriod is there: %v", name, eager)
			}
		}
	}
}
