//go:build linux

package apiserver

import (
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// changes is how many are timed.
const changes = 50

// testLatency prints how long it takes from the API write to the first new
// connection on the new backend. The bound only tells "works" from "waits for
// something": machines differ.
func testLatency(w *world) {
	w.run()
	svc := w.create()
	to := targets(svc, 80)[0]
	w.back("web", w.pods[0])
	w.reaches(w.client, []netip.AddrPort{to}, w.pods[0])
	var took []time.Duration
	for i := range changes {
		want := w.pods[(i+1)%2]
		began := time.Now()
		w.back("web", want)
		w.eventually(func() error { return only(w.client, lab.TCP, to, []*lab.Host{want}) })
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	p50, p99 := took[len(took)/2], took[len(took)*99/100]
	w.Logf("API write (two slices) to first new connection: p50 %v, p99 %v, %d changes", p50, p99, changes)
	if p50 > time.Second {
		w.Errorf("a change took %v (p50)", p50)
	}
}
