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

// recordingPlane wraps a plane and records its plans. It can be blocked before a plan, and can fail plans.
type recordingPlane struct {
	plane.Plane

	mu      sync.Mutex
	plans   []recordedPlan
	failing bool          // fail plans without writing anything
	failed  int           // plans
	held    chan struct{} // closed when a plan waits for release; nil: do not wait
	release chan struct{}
}

// recordedPlan is a plan and the Services in its change.
type recordedPlan struct {
	plane.Plan
	plane   *recordingPlane
	touched map[cluster.Name]bool
}

// restartRecording restarts the proxy with a recordingPlane.
func (e *env) restartRecording() (*recordingPlane, error) {
	if err := requireInProcess(e); err != nil {
		return nil, err
	}
	if err := stopForNext(e); err != nil {
		return nil, err
	}
	w := &recordingPlane{}
	open := e.proxy.plane.Open
	e.proxy.plane.Open = func(t testing.TB, host *lab.Host, s plane.Setup) *plane.Opened {
		opened := open(t, host, s)
		w.Plane, opened.Plane = opened.Plane, w
		return opened
	}
	err := startProxy(e)
	e.proxy.plane.Open = open
	return w, err
}

// Plan implements plane.Plane.
func (w *recordingPlane) Plan(change route.Change) plane.Plan {
	w.mu.Lock()
	held, release := w.held, w.release
	w.held = nil
	w.mu.Unlock()
	if held != nil {
		close(held)
		<-release
	}
	p := recordedPlan{Plan: w.Plane.Plan(change), plane: w, touched: map[cluster.Name]bool{}}
	for _, t := range change.Touched {
		p.touched[t.Name] = true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.plans = append(w.plans, p)
	return p
}

// Apply implements plane.Plan.
func (p recordedPlan) Apply(ctx context.Context) error {
	p.plane.mu.Lock()
	fails := p.plane.failing
	if fails {
		p.plane.failed++
	}
	p.plane.mu.Unlock()
	if fails {
		return errors.New("rejected by the test")
	}
	return p.Plan.Apply(ctx)
}

// plansFor counts the plans with a change of a Service.
func (w *recordingPlane) plansFor(service string) int {
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

// hold blocks the next plan until the returned function is called. It adds a barrier to cause
// that plan, and returns when it is blocked.
func (e *env) hold(w *recordingPlane) (release func(), err error) {
	held := make(chan struct{})
	w.mu.Lock()
	w.held, w.release = held, make(chan struct{})
	release = sync.OnceFunc(func() { close(w.release) })
	w.mu.Unlock()
	e.proxy.barrier.insert(e.proxy.store)
	select {
	case <-held:
		return release, nil
	case <-time.After(changeTimeout):
		release()
		return nil, errors.New("no plan was made")
	}
}

// whileWriting makes changes while the proxy is writing another one, and verifies the number of plans for Service web.
func whileWriting(plans int, changes func(*env) error) step {
	return func(e *env) error {
		w, err := e.restartRecording()
		if err != nil {
			return err
		}
		before := w.plansFor("web")
		release, err := e.hold(w)
		if err != nil {
			return err
		}
		err = changes(e)
		release()
		if err := errors.Join(err, e.proxy.settle()); err != nil {
			return err
		}
		if n := w.plansFor("web") - before; n != plans {
			return fmt.Errorf("%d plans, want %d", n, plans)
		}
		return nil
	}
}

// restartWithoutChange restarts the proxy and verifies that it writes nothing.
func restartWithoutChange(e *env) error {
	w, err := e.restartRecording()
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

// failPlans makes every plan fail without writing anything.
func (w *recordingPlane) failPlans() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failing = true
}

// stopFailing ends failPlans, and returns how many plans failed.
func (w *recordingPlane) stopFailing() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failing = false
	return w.failed
}

// whileRejected makes a change that the kernel rejects while the step meanwhile runs.
// Afterwards the proxy must write it.
func whileRejected(change, meanwhile step) step {
	return func(e *env) error {
		w, err := e.restartRecording()
		if err != nil {
			return err
		}
		w.failPlans()
		err = errors.Join(change(e), meanwhile(e))
		if n := w.stopFailing(); n == 0 {
			err = errors.Join(err, errors.New("the test rejected no plan"))
		}
		return errors.Join(err, e.proxy.settle())
	}
}
