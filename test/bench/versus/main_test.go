//go:build linux

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/apiserver"
	"github.com/sluice-proxy/sluice/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m, apiserver.Assets) }

// TestQuick runs all measurements with small amounts.
func TestQuick(t *testing.T) {
	file := filepath.Join(t.TempDir(), "results.json")
	o, err := parse([]string{"-quick", "-sizes=200", "-results=" + file}, "", os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	o.changes, o.idle, o.churn, o.rolling = 10, 200*time.Millisecond, time.Second, 200
	o.proxies = append(o.proxies, "nftables")             // Sluice again, with the objects that the previous run left in the API server
	if o.kubeProxy, err = harness.Program(); err != nil { // Sluice accepts kube-proxy's configuration and has its metrics
		t.Fatal(err)
	}
	if err := measure(o); err != nil {
		t.Fatal(err)
	}
	results, err := load(file)
	if err != nil || len(results) != 2 || results[1].Values["rolling.total"] == 0 {
		t.Fatalf("got %d results, %v, want two complete ones", len(results), err)
	}
	r := results[0]
	if r.NotReached != "" {
		t.Errorf("not reached: %s", r.NotReached)
	}
	for key, want := range map[string]float64{
		"restart.steps": 0, "change.n": 10, "churn.request.n": 50, "churn.unseen": 0, "rolling.writes": 8, "rolling.failed": 0,
	} {
		if got, ok := r.Values[key]; !ok || got != want {
			t.Errorf("%s is %v (measured: %t), want %v", key, got, ok, want)
		}
	}
	for _, row := range rows() {
		if value := row.value(r); value < 0 || (value != value && !strings.Contains(row.title, "CPU")) { // CPU time has ticks of 10 ms
			t.Errorf("%s is %v", row.title, value)
		}
	}
	if !strings.Contains(r.Heap, "flat") {
		t.Errorf("the heap profile is %q", r.Heap)
	}
	var report strings.Builder
	if err := run(options{report: true, results: file}, &report); err != nil {
		t.Fatal(err)
	}
	t.Log(report.String())
}

// An exceeded time limit is a result, not an error, and names the event.
func TestATimeLimitIsAResult(t *testing.T) {
	file := filepath.Join(t.TempDir(), "results.json")
	o, err := parse([]string{"-quick", "-sizes=200", "-parts=start", "-limit=1ms", "-results=" + file}, "", os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	if err := measure(o); err != nil {
		t.Fatal(err)
	}
	results, err := load(file)
	if err != nil || len(results) != 1 {
		t.Fatalf("got %d results, %v", len(results), err)
	}
	if want := "every probed Service reachable: not within 1ms"; results[0].NotReached != want || len(results[0].Values) != 0 {
		t.Errorf("got %q and %v, want %q and no values", results[0].NotReached, results[0].Values, want)
	}
}

func TestParse(t *testing.T) {
	program := filepath.Join(t.TempDir(), "kube-proxy")
	if err := os.WriteFile(program, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	all := []string{"sluice", "nftables", "iptables"}
	for _, test := range []struct {
		name, args, kubeProxy, problem string
		sizes                          []int
		proxies                        []string
	}{
		{name: "nothing", sizes: []int{1000, 10000, 100000}, proxies: all[:1]},
		{name: "with kube-proxy", kubeProxy: program, sizes: []int{1000, 10000, 100000}, proxies: all},
		{name: "quick", args: "-quick", sizes: []int{500}, proxies: all[:1]},
		{name: "a quick one of a size", args: "-quick -sizes 200,300", sizes: []int{200, 300}, proxies: all[:1]},
		{name: "too small", args: "-sizes 99", problem: `want numbers from 100 to 1000000, got "99"`},
		{name: "no number", args: "-sizes many", problem: `got "many"`},
		{name: "unknown proxy", args: "-proxies sluice,haproxy", problem: `got "haproxy"`},
		{name: "unknown part", args: "-parts stop", problem: `got "stop"`},
		{name: "no kube-proxy", args: "-proxies iptables", problem: "KUBE_PROXY is not set"},
		{name: "none there", args: "-proxies iptables", kubeProxy: program + "x", problem: "KUBE_PROXY is not a program"},
		{name: "words", args: "please", problem: `got "please"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			var help strings.Builder
			got, err := parse(strings.Fields(test.args), test.kubeProxy, &help)
			if test.problem != "" {
				if err == nil || !strings.Contains(err.Error(), test.problem) {
					t.Fatalf("got %v, want one about %q", err, test.problem)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got.sizes, test.sizes) || !slices.Equal(got.proxies, test.proxies) || !slices.Equal(got.parts, partNames()) {
				t.Errorf("got sizes %v, proxies %v, parts %v", got.sizes, got.proxies, got.parts)
			}
		})
	}
}
