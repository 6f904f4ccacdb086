//go:build linux

package endurance

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/inspect"
	"github.com/sluice-proxy/sluice/test/lab"
)

const (
	flushes  = 20
	flushed  = 2000                   // Services besides "web"
	repairIn = 50 * time.Millisecond  // and the load itself
	slack    = 250 * time.Millisecond // of a machine that is busy with other tests

	// A repair uses a fifth of a CPU at most, so the next one begins after four times the
	// duration of the last at the latest.
	repairPause = 4
)

func TestAFlushUnderTrafficIsRepaired(t *testing.T) {
	w := newWorld(t) // alone: it measures
	w.write("many.json", many(flushed, 0))
	d := w.start(launch{}, "-v=4")
	first := d.settled(flushed + 1)
	way := w.ways()[0]
	flow, r := way.From.Open(lab.Probe{Protocol: lab.TCP, To: way.To})
	if flow == nil {
		t.Fatal(r)
	}
	defer flow.Close()

	var times, loads []time.Duration
	for range flushes {
		w.lab.NodeA.Nft(onlyTheirs)
		began := time.Now()
		early := w.early(way)
		w.connects(way)
		times = append(times, time.Since(began))
		if r := flow.AskWithin([]byte("still there?"), 3*time.Second); r.Outcome != lab.Answered || !r.Echoed {
			t.Fatalf("the connection that was there all along: %s", r)
		}
		repair := w.repair(began)
		took := time.Duration(repair.Took)
		loads = append(loads, took)
		if r := <-early; r.Outcome != lab.Answered {
			t.Errorf("a client that began while there were no rules: %s", r)
		}
		time.Sleep(time.Until(repair.At.Add(repairPause*took + repairIn))) // the pause is not measured
	}
	slices.Sort(times)
	slices.Sort(loads)
	t.Logf("%d Services, first load %v; after each of %d flushes a new connection works in %v to %v, median %v",
		flushed, time.Duration(first.LastSync.Took), flushes, times[0], times[flushes-1], times[flushes/2])
	t.Logf("of that the load took %v to %v, median %v", loads[0], loads[flushes-1], loads[flushes/2])
	if most := loads[flushes/2] + repairIn + slack; times[flushes/2] > most {
		t.Errorf("repairs take %v, want less than %v", times[flushes/2], most)
	}
	w.same()
	w.repaired(flushes)
	d.once("Another program keeps changing our rules")
}

// onlyTheirs leaves nothing but rules of somebody else, for which flows are
// tracked on.
const onlyTheirs = `flush ruleset
table inet theirs {
	chain prerouting { type filter hook prerouting priority filter; ct state established accept; }
}
`

// early is a client that begins now. It sends again after 1, 3 and 7 seconds.
func (w *world) early(way lab.Way) <-chan lab.Result {
	answer := make(chan lab.Result, 1)
	go func() {
		answer <- way.From.Try(lab.Probe{Protocol: lab.TCP, To: way.To, Timeout: 15 * time.Second})
	}()
	return answer
}

// connects waits until a new connection is answered. Each try is a flow of its
// own: what was on its way without rules is only helped a little later.
func (w *world) connects(way lab.Way) {
	w.Helper()
	w.eventually(func() error {
		for range 500 {
			if r := way.From.Try(lab.Probe{Protocol: lab.TCP, To: way.To, Timeout: 10 * time.Millisecond}); r.Outcome == lab.Answered {
				return nil
			}
		}
		return fmt.Errorf("%s is not answered", way)
	})
}

// repair waits until a repair that ended after a time is over, and returns it.
func (w *world) repair(after time.Time) (last inspect.Sync) {
	w.Helper()
	w.eventually(func() error {
		s, err := w.status()
		if last = s.LastSync; err == nil && (last.Cause != "foreign-edit" || last.At.Before(after)) {
			err = fmt.Errorf("the last write is of %s, because of %s", last.At, last.Cause)
		}
		return err
	})
	return last
}

// repaired makes sure that this many edits of others were found and mended.
func (w *world) repaired(n int) {
	w.Helper()
	s, err := w.status()
	w.must(err)
	i := slices.IndexFunc(s.Repairs, func(t inspect.Tally) bool { return t.Cause == "foreign-edit" })
	if i < 0 || int(s.Repairs[i].Count) < n {
		w.Errorf("repairs are %+v, want %d after edits of others", s.Repairs, n)
	}
}
