//go:build linux

package apiserver

import (
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
	"github.com/sluice-proxy/sluice/test/machine"
)

// latencyChanges is how many changes are measured.
const latencyChanges = 50

// testLatency logs the time from the API write to the first new connection to the new backend.
// The bound is generous: it only detects an unintended wait.
func testLatency(w *testEnv) {
	w.run()
	svc := w.createService()
	to := targets(svc, 80)[0]
	w.setEndpoints("web", w.pods[0])
	w.waitReached(w.client, []netip.AddrPort{to}, w.pods[0])
	var took []time.Duration
	for i := range latencyChanges {
		want := w.pods[(i+1)%2]
		began := time.Now()
		w.setEndpoints("web", want)
		w.eventually(func() error { return checkAnsweredBy(w.client, lab.TCP, to, []*lab.Host{want}) })
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	p50, p99 := took[len(took)/2], took[len(took)*99/100]
	w.Logf("API write (two slices) to first new connection: p50 %v, p99 %v, %d changes", p50, p99, latencyChanges)
	if p50 > machine.Scale(time.Second) {
		w.Errorf("a change took %v (p50)", p50)
	}
}
