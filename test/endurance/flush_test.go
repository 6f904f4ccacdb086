//go:build linux

package endurance

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/test/lab"
	"github.com/sluice-proxy/sluice/test/machine"
)

const (
	flushes       = 20
	flushServices = 2000                   // Services besides "web"
	repairDelay   = 50 * time.Millisecond  // on a fast machine, in addition to the write itself
	slack         = 250 * time.Millisecond // besides

	// A repair uses at most a fifth of a CPU, so the next one begins at the latest after four
	// times the duration of the last.
	repairPause = 4
)

func TestAFlushUnderTrafficIsRepaired(t *testing.T) {
	w := newTestEnv(t) // not parallel, because it measures time
	w.write("many.json", many(flushServices, 0))
	d := w.start(launch{}, "-v=4")
	first := d.waitSynced(flushServices + 1)
	way := w.ways()[0]
	flow, r := way.From.Open(lab.Probe{Protocol: lab.TCP, To: way.To})
	if flow == nil {
		t.Fatal(r)
	}
	defer flow.Close()

	var times, loads []time.Duration
	for range flushes {
		w.lab.NodeA.Nft(onlyForeignRules)
		began := time.Now()
		early := w.connectEarly(way)
		w.waitConnect(way)
		times = append(times, time.Since(began))
		if r := flow.AskWithin([]byte("ping"), timeout); r.Outcome != lab.Answered || !r.Echoed {
			t.Fatalf("the open connection: %s", r)
		}
		repair := w.waitRepair(began)
		took := time.Duration(repair.Took)
		loads = append(loads, took)
		if r := <-early; r.Outcome != lab.Answered {
			t.Errorf("a client that connected while there were no rules: %s", r)
		}
		time.Sleep(time.Until(repair.At.Add(repairPause*took + repairDelay))) // the pause is not measured
	}
	slices.Sort(times)
	slices.Sort(loads)
	t.Logf("%d Services, first write %v; after each of %d flushes a new connection succeeds within %v to %v, median %v",
		flushServices, time.Duration(first.LastSync.Took), flushes, times[0], times[flushes-1], times[flushes/2])
	t.Logf("of that the write took %v to %v, median %v", loads[0], loads[flushes-1], loads[flushes/2])
	if most := loads[flushes/2] + machine.Scale(repairDelay+slack); times[flushes/2] > most {
		t.Errorf("repairs take %v, want less than %v", times[flushes/2], most)
	}
	w.checkDiff()
	w.checkRepairCount(flushes)
	d.checkLoggedOnce("Another program keeps changing the rules of Sluice")
}

// onlyForeignRules deletes all rules except foreign ones, which keep conntrack active.
const onlyForeignRules = `flush ruleset
table inet theirs {
	chain prerouting { type filter hook prerouting priority filter; ct state established accept; }
}
`

// connectEarly starts a connection now. Its SYN is retransmitted after 1, 3 and 7 seconds.
func (w *testEnv) connectEarly(way lab.Way) <-chan lab.Result {
	answer := make(chan lab.Result, 1)
	go func() {
		answer <- way.From.Try(lab.Probe{Protocol: lab.TCP, To: way.To, Timeout: timeout})
	}()
	return answer
}

// waitConnect waits until a new connection succeeds. Each attempt has its own source port: for
// flows that began without rules Sluice deletes the conntrack entries only later.
func (w *testEnv) waitConnect(way lab.Way) {
	w.Helper()
	w.eventually(func() error {
		for range 500 {
			r := way.From.Try(lab.Probe{Protocol: lab.TCP, To: way.To, Timeout: machine.Scale(10 * time.Millisecond)})
			if r.Outcome == lab.Answered {
				return nil
			}
		}
		return fmt.Errorf("%s is not answered", way)
	})
}

// waitRepair waits for a repair that ended after the given time, and returns it.
func (w *testEnv) waitRepair(after time.Time) (last inspect.Sync) {
	w.Helper()
	w.eventually(func() error {
		s, err := w.status()
		if last = s.LastSync; err == nil && (last.Cause != "foreign-edit" || last.At.Before(after)) {
			err = fmt.Errorf("the last write was at %s, with cause %s", last.At, last.Cause)
		}
		return err
	})
	return last
}

// checkRepairCount verifies the number of repaired edits.
func (w *testEnv) checkRepairCount(n int) {
	w.Helper()
	s, err := w.status()
	w.must(err)
	i := slices.IndexFunc(s.Repairs, func(t inspect.Tally) bool { return t.Cause == "foreign-edit" })
	if i < 0 || int(s.Repairs[i].Count) < n {
		w.Errorf("repairs are %+v, want at least %d for foreign edits", s.Repairs, n)
	}
}
