package conntrack

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/testing/conntracktest"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/seeds"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

// The same scenarios with the kernel's own table.
func TestKernelScenarios(t *testing.T) {
	seeds.Long(t)
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) { s.run(t, conntracktest.Open(t)) })
	}
}

// One backend of one Service goes away while the kernel tracks 100,000 flows of
// others: how long from the change until its flows are gone.
func BenchmarkBackendGone(b *testing.B) {
	table := conntracktest.Open(b)
	crowd(b, table, "17 10.%d.%d.%d:7 > 10.96.0.9:53 via 10.1.9.9:53")
	f := New(Options{Table: table})
	f.Applied(change(b, allLocal(), "dns: 10.96.0.10:53 nodePort:30053 = 10.1.0.1:53"))
	settle(b, f)
	deleted := 0
	var worst time.Duration
	for i := 0; b.Loop(); i++ {
		gone, next := i%2+1, (i+1)%2+1
		text := fmt.Sprintf("17 10.200.0.1:7 > 10.96.0.10:53 via 10.1.0.%d:53", gone)
		if err := table.Create(flow(b, text)); err != nil {
			b.Fatal(err)
		}
		started := time.Now()
		f.Applied(change(b, allLocal(), fmt.Sprintf("dns: 10.96.0.10:53 nodePort:30053 = 10.1.0.%d:53", next)))
		queued := time.Since(started)
		deleted += settle(b, f)
		worst = max(worst, queued)
	}
	b.ReportMetric(float64(worst.Microseconds()), "us/Applied-worst")
	if deleted != b.N {
		b.Errorf("%d flows deleted, want %d", deleted, b.N)
	}
}

// A Service is new, and one client began before it, while the kernel tracks
// 100,000 connections of others: how long until that client is free.
func BenchmarkServiceNew(b *testing.B) {
	table := conntracktest.Open(b)
	crowd(b, table, "6 10.%d.%d.%d:7 > 10.96.0.9:80 via 10.1.9.9:80 answered")
	f := New(Options{Table: table})
	deleted := 0
	for b.Loop() {
		if err := table.Create(flow(b, "6 10.200.0.1:7 > 10.96.0.10:80")); err != nil {
			b.Fatal(err)
		}
		f.Applied(change(b, allLocal(), "web/tcp: 10.96.0.10:80 = 10.1.0.1:80"))
		deleted += settle(b, f)
	}
	if deleted != b.N {
		b.Errorf("%d flows deleted, want %d", deleted, b.N)
	}
}

// crowd makes 100,000 flows from different clients.
func crowd(b *testing.B, table creator, format string) {
	b.Helper()
	for i := range 100_000 {
		if err := table.Create(flow(b, fmt.Sprintf(format, i/60000, i/250%240, i%250+1))); err != nil {
			b.Fatal(err)
		}
	}
}
