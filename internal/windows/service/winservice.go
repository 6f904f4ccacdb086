// Package service runs this program as a service of Windows: it reports its state to the service
// manager, and ends the program when the manager asks for that.
//
// What to report is decided in this file, on any system; service_windows.go talks to the manager.
package service

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrNoManager means that no service manager started this process.
var ErrNoManager = errors.New("the service manager of Windows did not start this process")

// Program is the main function of a service. It calls running once it serves, and returns when the context ends.
type Program func(ctx context.Context, running func()) error

// request is a request of the service manager.
type request int

const (
	interrogate request = iota // report the state again
	stop                       // end; the machine may be shutting down
)

type state int

const (
	startPending state = iota
	running
	stopPending
)

// status is a report to the service manager. While a service starts or ends, the checkpoint must grow, or the manager
// considers the service hung.
type status struct {
	state      state
	checkpoint uint32
}

// checkpointPeriod is how often the checkpoint grows. waitHint is how long the manager waits for that.
const (
	checkpointPeriod = 5 * time.Second
	waitHint         = 30 * time.Second
)

// supervise runs a program until it ends, and reports its state. Only a request ends the program's
// context.
func supervise(ctx context.Context, program Program, requests <-chan request, report func(status)) error {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // Windows sends signals to services when users log off
	defer cancel()
	serving, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- program(ctx, sync.OnceFunc(func() { close(serving) })) }()
	ticker := time.NewTicker(checkpointPeriod)
	defer ticker.Stop()
	now := status{}
	report(now)
	for {
		before := now
		select {
		case err := <-done:
			return err
		case <-serving:
			serving = nil
			now = now.served()
		case r := <-requests:
			now = now.asked(r)
			if r == interrogate {
				report(now)
			}
		case <-ticker.C:
			now = now.later()
		}
		if now != before {
			report(now)
		}
		if now.state == stopPending {
			cancel()
		}
	}
}

// served returns the status after the program has begun to serve.
func (s status) served() status {
	if s.state == startPending {
		return status{state: running}
	}
	return s
}

// asked returns the status after a request.
func (s status) asked(r request) status {
	if r == stop && s.state != stopPending {
		return status{state: stopPending}
	}
	return s
}

// later returns the status after a checkpointPeriod.
func (s status) later() status {
	if s.state != running {
		s.checkpoint++
	}
	return s
}
