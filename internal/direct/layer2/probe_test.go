package layer2

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/plane"
)

// A node is reached once it has answered a probe, and until it has missed five in turn. Each second there is one, also
// if ports change more often.
func TestANodeThatDoesNotAnswerProbesIsNotReached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, &fake{Fake: nft.NewFake()})
		w.silent = []bool{true, false, true, true, true, true, false, true, true, true, true, true}
		w.run()
		var got []string
		for round := range w.silent {
			if round > 0 {
				time.Sleep(pollPeriod)
			}
			w.apply("web", 1, "b", "c")
			w.apply("web", 1, "b", "c")
			var names []string
			for _, p := range w.f.Status().Peers {
				if p.Why == "" {
					names = append(names, p.Node)
				}
			}
			got = append(got, strings.Join(names, " "))
		}
		want := []string{"b", "b c", "b c", "b c", "b c", "b c", "b c", "b c", "b c", "b c", "b c", "b"}
		if diff := cmp.Diff(want, got); diff != "" || w.probes != len(want) {
			t.Errorf("reached in %d rounds, want %d (-want +got):\n%s", w.probes, len(want), diff)
		}
		const why = "it does not send back packets with foreign addresses: the network may check sources and " +
			"destinations, or Sluice is not ready there"
		if diff := cmp.Diff(why, w.f.Status().Peers[1].Why); diff != "" {
			t.Errorf("reason (-want +got):\n%s", diff)
		}
		s := side{nft.IP4, true}
		all := w.kernel.Tables[s.table(w.f.g)].Sets[s.neighbours(nft.Device{Name: "eth0", Index: 2}).Name]
		if n := len(all.Elements); n != 2 {
			t.Errorf("probes of %d nodes are sent back, want those of 2", n)
		}
		w.apply("web", 1, "b", "c")
		time.Sleep(12 * pollPeriod) // from the sixth on, no probe is sent
		synctest.Wait()
		peers := []plane.Peer{{Node: "b", Family: "IPv4", Why: "no socket"}, {Node: "c", Family: "IPv4", Why: "no socket"}}
		if diff := cmp.Diff(peers, w.f.Status().Peers); diff != "" {
			t.Errorf("without probes (-want +got):\n%s", diff)
		}
	})
}

// On a host where polls take long, a node that stops to answer is not reached any more some ten seconds later.
func TestSlowPollsDoNotDelayProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, &fake{Fake: nft.NewFake()})
		w.slow = time.Second / 10
		w.silent = []bool{false, true, true, true, true, true, false}
		w.run()
		w.apply("web", 1, "b", "c")
		time.Sleep(pollPeriod)
		began := time.Now()
		for w.f.Status().Peers[1].Why == "" && time.Since(began) < time.Minute {
			time.Sleep(pollPeriod / 10)
		}
		if took := time.Since(began); took > 12*time.Second {
			t.Errorf("the node is reached for %v", took)
		}
	})
}
