//go:build linux

package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/test/lab"
)

// watched is a plane of which a scenario sees the plans. It can be held before
// it makes one, and be made to fail.
type watched struct {
	plane.Plane

	mu      sync.Mutex
	plans   []watchedPlan
	failing bool          // nothing is written
	failed  int           // so often
	held    chan struct{} // told when a plan waits; nil: do not wait
	release chan struct{}
}

// watchedPlan is one plan, and the Services it was made for.
type watchedPlan struct {
	plane.Plan
	watched *watched
	touched map[cluster.Name]bool
}

// watch starts the proxy again with its plane watched from the beginning.
func (e *env) watch() (*watched, error) {
	if err := sameProcess(e); err != nil {
		return nil, err
	}
	e.proxy.stop()
	w := &watched{}
	start := e.proxy.plane.Start
	e.proxy.plane.Start = func(t testing.TB, host *lab.Host) plane.Plane {
		w.Plane = start(t, host)
		return w
	}
	err := startProxy(e)
	e.proxy.plane.Start = start
	return w, err
}

// Plan implements plane.Plane.
func (w *watched) Plan(change route.Change) plane.Plan {
	w.mu.Lock()
	held, release := w.held, w.release
	w.held = nil
	w.mu.Unlock()
	if held != nil {
		close(held)
		<-release
	}
	p := watchedPlan{Plan: w.Plane.Plan(change), watched: w, touched: map[cluster.Name]bool{}}
	for _, t := range change.Touched {
		p.touched[t.Name] = true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.plans = append(w.plans, p)
	return p
}

// Apply implements plane.Plan.
func (p watchedPlan) Apply(ctx context.Context) error {
	p.watched.mu.Lock()
	fails := p.watched.failing
	if fails {
		p.watched.failed++
	}
	p.watched.mu.Unlock()
	if fails {
		return errors.New("refused, to see what becomes of it")
	}
	return p.Plan.Apply(ctx)
}

// touching counts the plans made for a Service.
func (w *watched) touching(service string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, p := range w.plans {
		if p.touched[cluster.Name{Namespace: "default", Name: service}] {
			n++
		}
	}
	return n
}

// hold has the next plan wait until the function returned is called. It returns
// when that plan is about to be made, for the sake of the barrier.
func (e *env) hold(w *watched) (release func(), err error) {
	held := make(chan struct{})
	w.mu.Lock()
	w.held, w.release = held, make(chan struct{})
	release = sync.OnceFunc(func() { close(w.release) })
	w.mu.Unlock()
	e.proxy.barrier.raise(e.proxy.store)
	select {
	case <-held:
		return release, nil
	case <-time.After(patience):
		release()
		return nil, errors.New("no plan was made")
	}
}

// whileBusy has changes happen while the proxy is writing another one; those for
// Service web must make so many plans, and no more.
func whileBusy(plans int, changes func(*env) error) step {
	return func(e *env) error {
		w, err := e.watch()
		if err != nil {
			return err
		}
		before := w.touching("web")
		release, err := e.hold(w)
		if err != nil {
			return err
		}
		err = changes(e)
		release()
		if err := errors.Join(err, e.proxy.settle()); err != nil {
			return err
		}
		if n := w.touching("web") - before; n != plans {
			return fmt.Errorf("%d plans, want %d", n, plans)
		}
		return nil
	}
}

// restartWithoutChange starts the proxy again; it must find nothing to write.
func restartWithoutChange(e *env) error {
	w, err := e.watch()
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.plans {
		if p.Steps() > 0 {
			return fmt.Errorf("%d steps:\n%s", p.Steps(), p)
		}
	}
	return nil
}

// refuse has every plan from now on fail, with nothing written.
func (w *watched) refuse() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failing = true
}

// relent ends refuse, and returns how many plans failed.
func (w *watched) relent() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failing = false
	return w.failed
}

// rejecting makes a change that the kernel refuses for as long as clients look
// at what there is meanwhile. After that it must be written soon.
func rejecting(change, meanwhile step) step {
	return func(e *env) error {
		w, err := e.watch()
		if err != nil {
			return err
		}
		w.refuse()
		err = errors.Join(change(e), meanwhile(e))
		if n := w.relent(); n == 0 {
			err = errors.Join(err, errors.New("nothing was refused: the test is wrong"))
		}
		return errors.Join(err, e.proxy.settle())
	}
}
