package service

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// manager is a service manager that keeps the reports.
type manager struct {
	requests chan request
	reports  []status
	err      chan error
}

func start(ctx context.Context, program Program) *manager {
	m := &manager{requests: make(chan request), err: make(chan error, 1)}
	go func() {
		m.err <- supervise(ctx, program, m.requests, func(s status) { m.reports = append(m.reports, s) })
	}()
	synctest.Wait()
	return m
}

func (m *manager) ask(r request) {
	m.requests <- r
	synctest.Wait()
}

func (m *manager) check(t *testing.T, want ...status) {
	t.Helper()
	if !slices.Equal(m.reports, want) {
		t.Errorf("reports %+v, want %+v", m.reports, want)
	}
}

// A service starts, serves and ends. A second request to end changes nothing, and a question is answered.
func TestLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := start(t.Context(), func(ctx context.Context, running func()) error {
			time.Sleep(12 * time.Second)
			running()
			<-ctx.Done()
			time.Sleep(7 * time.Second)
			return nil
		})
		time.Sleep(time.Minute)
		m.ask(interrogate)
		m.ask(stop)
		m.ask(stop)
		if err := <-m.err; err != nil {
			t.Error(err)
		}
		m.check(t, status{startPending, 0}, status{startPending, 1}, status{startPending, 2},
			status{running, 0}, status{running, 0}, status{stopPending, 0}, status{stopPending, 1})
	})
}

// A program may be asked to end before it serves. Then it is never reported as running.
func TestStopBeforeItServes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := start(t.Context(), func(ctx context.Context, running func()) error {
			<-ctx.Done()
			running()
			return ctx.Err()
		})
		m.ask(stop)
		if err := <-m.err; !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		m.check(t, status{startPending, 0}, status{stopPending, 0})
	})
}

// A failure before the program serves is the result.
func TestFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		want := errors.New("no such file")
		m := start(t.Context(), func(context.Context, func()) error { return want })
		if err := <-m.err; !errors.Is(err, want) {
			t.Errorf("error %v, want %v", err, want)
		}
	})
}

// A signal does not end a service: Windows sends one when a user logs off.
func TestSignal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		m := start(ctx, func(ctx context.Context, running func()) error {
			running()
			<-ctx.Done()
			return nil
		})
		cancel()
		synctest.Wait()
		m.check(t, status{startPending, 0}, status{running, 0})
		m.ask(stop)
		if err := <-m.err; err != nil {
			t.Error(err)
		}
	})
}
