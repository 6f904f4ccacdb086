package service

import (
	"context"
	"errors"
	"testing"

	"golang.org/x/sys/windows/svc"
)

// run runs a service with requests of the manager. Its context has ended, as after a signal: Windows sends one when a
// user logs off. It returns the exit code and the reported states.
func run(t *testing.T, program Program, requests ...svc.Cmd) (code uint32, states []svc.State) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	asked, reports := make(chan svc.ChangeRequest, len(requests)), make(chan svc.Status, len(requests)+1)
	for _, r := range requests {
		asked <- svc.ChangeRequest{Cmd: r}
	}
	_, code = (&service{ctx: ctx, program: program}).Execute(nil, asked, reports)
	close(reports)
	for s := range reports {
		states = append(states, s.State)
	}
	return code, states
}

// A service runs until the manager requests its end, and answers other requests.
func TestStop(t *testing.T) {
	code, states := run(t, func(ctx context.Context) error {
		<-ctx.Done()
		return nil
	}, svc.Interrogate, svc.Stop)
	if code != 0 || len(states) != 3 || states[1] != svc.Running || states[2] != svc.StopPending {
		t.Errorf("code %d, states %v", code, states)
	}
}

// A failure is the exit code.
func TestFailure(t *testing.T) {
	code, states := run(t, func(context.Context) error { return errors.New("no such file") })
	if code != failed || len(states) != 1 || states[0] != svc.Running {
		t.Errorf("code %d, states %v", code, states)
	}
}
