//go:build linux

package hostile

import (
	"cmp"
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
	"github.com/sluice-proxy/sluice/test/machine"
)

// attack is a row of the table.
type attack struct {
	name     string
	planes   []plane  // nil: nftables only
	full     []plane  // more planes if FULL is set; nil means iptables in both variants
	flags    []string // of the daemon
	files    uint64   // RLIMIT_NOFILE of the daemon; 0: the default
	limits   limits
	duration time.Duration // 1.5 s if 0; longer if there are fewer than minChanges

	// alone marks an attack that needs so much CPU time that no other may run at the same time.
	alone bool

	// removesRules marks an attack that removes rules, so that Services cannot always answer.
	removesRules bool

	before func(*attackTest)                        // runs before the daemon starts
	during func(context.Context, *attackTest) error // runs while changes are timed, until the context ends
	after  func(*attackTest)                        // runs after that
}

// limits are bounds on the daemon, on a fast machine. A zero field means the default.
type limits struct {
	start  time.Duration // until good Services answer after the daemon started, without slack
	change time.Duration // until a change of a good Service takes effect, without slack; the default depends on the plane
	memory int           // VmHWM in MB
	cpu    float64       // cores, on average over the attack
	log    int           // bytes of log
}

// withDefaults returns the bounds for this machine, with slack.
func (l limits) withDefaults(p plane) limits {
	return limits{
		change: machine.Scale(cmp.Or(l.change, p.change) + slack),
		start:  machine.Scale(cmp.Or(l.start, 5*time.Second) + slack),
		memory: cmp.Or(l.memory, 250),
		cpu:    cmp.Or(l.cpu, 0.5) * machine.Slowdown(),
		log:    cmp.Or(l.log, 256<<10),
	}
}

const (
	// slack is added to bounds on time, because other tests share the machine.
	slack = time.Second

	// startCPU is the additional CPU time in seconds for start and stop.
	startCPU = 1.5

	// minChanges is how many changes of a good Service are measured during an attack.
	minChanges = 8
)

// changeTimeout is how long to wait for a change. It is longer than every bound, in order to report the actual time.
func changeTimeout() time.Duration { return machine.Scale(30 * time.Second) }

func attacks() []attack {
	return slices.Concat(manifests(), claims(), largeServices(), oddObjects(), badClients(), controlSocket(),
		neighbours(), editors(), proxied(), failures(), drains())
}

// TestCostlyAttacks runs the rows that must run alone, one after another.
func TestCostlyAttacks(t *testing.T) { run(t, func(a attack) bool { return a.alone }) }

// TestAttacks runs the other rows, several at a time.
func TestAttacks(t *testing.T) { run(t, func(a attack) bool { return !a.alone }) }

// run runs each selected row on every plane that it names, and verifies that the tests leave
// no processes, namespaces and sockets behind.
func run(t *testing.T, selected func(attack) bool) {
	t.Helper()
	began, before := time.Now(), inventory(t)
	t.Cleanup(func() {
		t.Logf("the attacks took %v", time.Since(began).Round(time.Second))
		if after := inventory(t); !slices.Equal(before, after) {
			t.Errorf("left behind:\n%s\nbefore:\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
		}
	})
	rows := attacks()
	for _, p := range []plane{nftables, iptablesNFT, iptablesLegacy, userspace, ebpf} {
		t.Run(p.name, func(t *testing.T) {
			mine := slices.DeleteFunc(slices.Clone(rows), func(a attack) bool {
				return !selected(a) || !slices.Contains(a.testPlanes(), p)
			})
			if len(mine) > 0 && !mine[0].alone {
				t.Parallel()
			}
			for _, a := range mine {
				t.Run(a.name, func(t *testing.T) {
					if !a.alone {
						t.Parallel()
					}
					newAttackTest(t, p, a).run(a)
				})
			}
		})
	}
}

// testPlanes returns the planes to attack: those where the attack matters, and others in a full run.
func (a attack) testPlanes() []plane {
	planes, full := a.planes, a.full
	if planes == nil {
		planes = []plane{nftables}
	}
	if full == nil {
		full = []plane{iptablesNFT, iptablesLegacy}
	}
	if os.Getenv("FULL") == "" {
		return planes
	}
	return slices.Concat(planes, full)
}

// run runs an attack against a daemon and verifies the bounds.
func (s *attackTest) run(a attack) {
	s.Helper()
	bounds := a.limits.withDefaults(s.plane)
	if a.before != nil {
		a.before(s)
	}
	s.launch()
	began := time.Now()
	measure := sync.OnceFunc(func() { s.checkUsage(bounds, began) })
	defer measure() // even after an earlier failure
	if took := s.change(); took > bounds.start {
		s.Errorf("after the start the good Services answer after %v, want at most %v", took, bounds.start)
	}
	var traffic *lab.Steady
	if !a.removesRules {
		traffic = lab.StartSteady(s, pace, s.ways()...)
	}
	if !a.removesRules {
		s.timeChanges(a, bounds.change)
	}
	s.removeHostile()
	if took := s.change(); took > bounds.change && !a.removesRules {
		s.Errorf("a change right after the attack takes effect after %v, want at most %v", took, bounds.change)
	}
	if traffic != nil {
		if err := traffic.End(); err != nil {
			s.Errorf("connections to good Services failed: %v", err)
		}
	}
	if a.after != nil {
		a.after(s)
	}
	if !a.removesRules { // the daemon may report for some time that it was not healthy
		s.waitHealthy()
	}
	measure()
	for _, stop := range s.stops {
		stop()
	}
	s.cleanUp()
}

// timeChanges measures changes of a good Service during the attack.
func (s *attackTest) timeChanges(a attack, bound time.Duration) {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	end := time.Now().Add(cmp.Or(a.duration, 1500*time.Millisecond))
	done := make(chan error, 1)
	go func() {
		defer close(done)
		if a.during != nil {
			done <- a.during(ctx, s)
		}
	}()
	var times []time.Duration
	for len(times) < minChanges || time.Now().Before(end) {
		times = append(times, s.change())
		s.checkHealth()
		for _, check := range s.checks {
			check()
		}
		s.pause(ctx, 50*time.Millisecond)
	}
	cancel()
	if err := <-done; err != nil {
		s.Errorf("attack: %v", err)
	}
	for fault, n := range s.faults {
		s.Errorf("%s: failed %d times during %d changes", fault, n, len(times))
	}
	slices.Sort(times)
	worst := times[len(times)-1]
	s.Logf("%d changes, median %v, worst %v", len(times), times[len(times)/2].Round(time.Millisecond),
		worst.Round(time.Millisecond))
	if worst > bound {
		s.Errorf("during the attack a change takes effect after %v, want at most %v", worst, bound)
	}
}
