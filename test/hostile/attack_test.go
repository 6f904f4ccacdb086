//go:build linux

package hostile

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// attack is a row of the table.
type attack struct {
	name   string
	planes []plane  // nil: nftables only
	flags  []string // of the daemon
	files  uint64   // RLIMIT_NOFILE of the daemon; 0: as it is
	limits limits
	lasts  time.Duration // 2 s if 0

	// alone marks an attack that costs so much that no other runs beside it.
	alone bool

	// edits marks an attack that removes rules, so that Services cannot answer
	// all the time.
	edits bool

	before func(*siege)                        // runs before the daemon starts
	during func(context.Context, *siege) error // runs while changes are timed, until the context ends
	after  func(*siege)                        // runs then
}

// limits are bounds on the daemon. A zero field means the usual one.
type limits struct {
	start  time.Duration // until good Services answer after the daemon started
	change time.Duration // until a change of a good Service works; usually that of the plane
	memory int           // VmHWM in MB
	cpu    float64       // cores, on average over the attack
	log    int           // bytes of log
}

func (l limits) orUsual(p plane) limits {
	return limits{
		change: cmp.Or(l.change, p.change),
		start:  cmp.Or(l.start, 5*time.Second),
		memory: cmp.Or(l.memory, 250),
		cpu:    cmp.Or(l.cpu, 0.5),
		log:    cmp.Or(l.log, 256<<10),
	}
}

const (
	// slack is added to bounds on time: other tests share the machine.
	slack = time.Second

	// startCPU is CPU time in seconds that starting and ending may cost on top.
	startCPU = 1.5

	// giveUp is how long to wait for what is late already, to tell how late.
	giveUp = 8 * time.Second
)

func attacks() []attack {
	return slices.Concat(manifests(), claims(), largeServices(), oddObjects(), strangers(), controlSocket(), neighbours(), editors())
}

// TestCostlyAttacks runs the rows that must run alone, one after the other.
func TestCostlyAttacks(t *testing.T) { run(t, func(a attack) bool { return a.alone }) }

// TestAttacks runs the other rows, several at a time.
func TestAttacks(t *testing.T) { run(t, func(a attack) bool { return !a.alone }) }

// run runs each chosen row on every plane that it names, and verifies that the
// tests themselves leave nothing behind.
func run(t *testing.T, chosen func(attack) bool) {
	t.Helper()
	began, before := time.Now(), inventory(t)
	t.Cleanup(func() {
		t.Logf("the attacks took %v", time.Since(began).Round(time.Second))
		if after := inventory(t); !slices.Equal(before, after) {
			t.Errorf("left behind:\n%s\nbefore:\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
		}
	})
	rows := attacks()
	for _, p := range []plane{nftables, iptablesNFT, iptablesLegacy} {
		t.Run(p.name, func(t *testing.T) {
			mine := slices.DeleteFunc(slices.Clone(rows), func(a attack) bool {
				return !chosen(a) || !slices.Contains(a.against(), p)
			})
			if len(mine) > 0 && !mine[0].alone {
				t.Parallel()
			}
			for _, a := range mine {
				t.Run(a.name, func(t *testing.T) {
					if !a.alone {
						t.Parallel()
					}
					newSiege(t, p, a).endure(a)
				})
			}
		})
	}
}

func (a attack) against() []plane {
	if a.planes == nil {
		return []plane{nftables}
	}
	return a.planes
}

// endure runs an attack against a daemon and holds it to the bounds.
func (s *siege) endure(a attack) {
	s.Helper()
	bounds := a.limits.orUsual(s.plane)
	if a.before != nil {
		a.before(s)
	}
	s.launch()
	began := time.Now()
	measure := sync.OnceFunc(func() { s.usage(bounds, began) })
	defer measure() // also if something else has failed already
	if took := s.turn(); took > bounds.start+slack {
		s.Errorf("the first good Service answers after %v, want %v", took, bounds.start)
	}
	var traffic *lab.Steady
	if !a.edits {
		traffic = lab.StartSteady(s, pace, s.ways()...)
	}
	s.watch(a, bounds.change)
	s.evict()
	if took := s.turn(); took > bounds.change+slack && !a.edits {
		s.Errorf("a change right after the attack works after %v, want %v", took, bounds.change)
	}
	if traffic != nil {
		if err := traffic.End(); err != nil {
			s.Errorf("traffic of good Services broke: %v", err)
		}
	}
	if a.after != nil {
		a.after(s)
	}
	if !a.edits { // that it was not healthy may be told for longer
		s.recovers()
	}
	measure()
	for _, stop := range s.stops {
		stop()
	}
	s.leave()
}

// watch times changes of a good Service for as long as the attack lasts.
func (s *siege) watch(a attack, bound time.Duration) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), cmp.Or(a.lasts, 2*time.Second))
	defer cancel()
	done := make(chan error, 1)
	go func() {
		defer close(done)
		if a.during != nil {
			done <- a.during(ctx, s)
		}
	}()
	var times []time.Duration
	for ctx.Err() == nil {
		if a.edits {
			s.pause(ctx, 50*time.Millisecond)
			continue
		}
		times = append(times, s.turn())
		s.healthy()
		for _, check := range s.checks {
			check()
		}
		s.pause(ctx, 50*time.Millisecond)
	}
	cancel()
	if err := <-done; err != nil {
		s.Errorf("attack: %v", err)
	}
	for what, n := range s.faults {
		s.Errorf("%s: not as it should be in %d of %d looks", what, n, len(times))
	}
	if len(times) == 0 {
		return
	}
	slices.Sort(times)
	worst := times[len(times)-1]
	s.Logf("%d changes, median %v, worst %v", len(times), times[len(times)/2].Round(time.Millisecond), worst.Round(time.Millisecond))
	if worst > bound+slack {
		s.Errorf("during the attack a change works after %v, want %v", worst, bound)
	}
}
