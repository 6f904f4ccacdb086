package event

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/route"
)

// digesting is a Digest under test, in a synctest bubble.
type digesting struct {
	*Digest
	t    *testing.T
	stop func()

	mu     sync.Mutex
	passed []string
}

func digest(t *testing.T, levels ...level) *digesting {
	t.Helper()
	d := &digesting{t: t}
	tell := func(problems ...route.Problem) {
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, p := range problems {
			d.passed = append(d.passed, fmt.Sprintf("%s x%d", p, p.Weight()))
		}
	}
	d.Digest = NewDigest(DigestOptions{
		Summary: func(_ Group, p route.Problem) { tell(p) },
		Report:  func(problems []route.Problem) { tell(problems...) },
	})
	d.levels = levels
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	d.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	return d
}

// expect compares the problems that were forwarded since the last call.
func (d *digesting) expect(what string, want ...string) {
	d.t.Helper()
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Equal(d.passed, want) {
		d.t.Errorf("%s: passed on\n%q\nwant\n%q", what, d.passed, want)
	}
	d.passed = nil
}

func conflictOf(namespace string, i int) route.Problem {
	return route.Problem{
		Object: fmt.Sprintf("Service %s/s%d", namespace, i), Field: "spec.externalIPs", Value: "192.0.2.1:80/tcp",
		Reason: fmt.Sprintf("left out, as it belongs to Service x/owner-%d", i%3),
	}
}

func (d *digesting) conflicts(namespace string, from, to int) {
	for i := from; i < to; i++ { // one by one
		d.Report([]route.Problem{conflictOf(namespace, i)})
	}
}

// The first are passed on, the others counted: after ten seconds, and then less
// and less often while more come. Another namespace has nothing to do with it.
func TestRepeatedProblemsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := digest(t, level{SameProblem, 2})
		line := func(namespace string, i int) string { return conflictOf(namespace, i).String() }
		d.conflicts("shop", 0, 1000)
		d.conflicts("bank", 0, 1)
		d.expect("at once", line("shop", 0)+" x1", line("shop", 1)+" x1", line("bank", 0)+" x1")
		time.Sleep(firstWindow + time.Second)
		d.expect("after the window", line("shop", 999)+"; 997 more such problems in namespace shop x998")
		d.conflicts("shop", 1000, 1001)
		time.Sleep(firstWindow)
		d.expect("the second window is longer")
		time.Sleep(firstWindow)
		d.expect("one more is no crowd", line("shop", 1000)+" x1")
		time.Sleep(time.Hour)
		d.conflicts("shop", 0, 3)
		d.expect("after a quiet time", line("shop", 0)+" x1", line("shop", 1)+" x1")
		d.stop()
		d.expect("at the end", line("shop", 2)+" x1")
	})
}

// A problem that stands for many counts as many. Different problems are counted
// together only by a level of their class.
func TestLevels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := digest(t, level{SameProblem, 1}, level{SameClass, 3})
		p := func(value string, count int) route.Problem {
			return route.Problem{Object: "Service a/b", Field: "spec.externalIPs[1]", Value: value, Reason: "bad", Count: count}
		}
		d.Report([]route.Problem{p("x", 0), p("y", 0), p("x", 50), p("x", 3), p("z", 0), p("u", 0), p("v", 7)})
		const line = "Service a/b: spec.externalIPs[1]: "
		d.expect("at once", line+"x: bad x1", line+"y: bad x1", line+"z: bad x1")
		time.Sleep(firstWindow)
		synctest.Wait() // all is passed on
		slices.Sort(d.passed)
		d.expect("after the window", line+"v: bad; 1 more such problems in namespace a x8",
			line+"x: bad; 50 more such problems in namespace a x53")
		d.stop()
	})
}

// The memory of a Digest is bounded, whatever is reported.
func TestDigestIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := digest(t, level{SameProblem, 10}, level{SameClass, 100})
		for i := range 3 * maxGroups {
			d.Report([]route.Problem{{Object: "Service a/b", Value: fmt.Sprint(i), Reason: "bad"}})
		}
		if len(d.groups) > maxGroups+1 || len(d.passed) != 100 {
			t.Errorf("%d groups, %d passed on; want at most %d, 100", len(d.groups), len(d.passed), maxGroups+1)
		}
		d.stop()
	})
}
