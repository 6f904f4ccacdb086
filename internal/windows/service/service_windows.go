package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/eventlog"
)

// failed is the number of the event of a failure, and the exit code of the service.
const failed = 1

// Run runs a program as the service with a name, until it ends. It returns the error of the program,
// which it also writes to the event log, or ErrNoManager.
func Run(ctx context.Context, name string, program Program) error {
	s := &service{ctx: ctx, name: name, program: program}
	err := svc.Run(name, s)
	if errors.Is(err, windows.ERROR_FAILED_SERVICE_CONTROLLER_CONNECT) {
		return ErrNoManager
	}
	if err != nil {
		err = fmt.Errorf("run as a service of Windows: %w", err)
	}
	return errors.Join(s.err, err)
}

// service is a svc.Handler.
type service struct {
	ctx     context.Context
	name    string
	program Program
	err     error // of the program
}

// Execute implements svc.Handler.
func (s *service) Execute(
	_ []string, changes <-chan svc.ChangeRequest, reports chan<- svc.Status,
) (specific bool, code uint32) {
	requests, ended := make(chan request), make(chan struct{})
	defer close(ended)
	go translate(changes, requests, ended)
	s.err = supervise(s.ctx, s.program, requests, func(now status) { reports <- now.encode() })
	if s.err == nil {
		return false, 0
	}
	s.log()
	return true, failed
}

// translate passes on the requests that supervise knows, until the program has ended.
func translate(changes <-chan svc.ChangeRequest, requests chan<- request, ended <-chan struct{}) {
	known := map[svc.Cmd]request{svc.Interrogate: interrogate, svc.Stop: stop, svc.Shutdown: stop, svc.PreShutdown: stop}
	for {
		var r request
		select {
		case c := <-changes:
			var ok bool
			if r, ok = known[c.Cmd]; !ok {
				continue
			}
		case <-ended:
			return
		}
		select {
		case requests <- r:
		case <-ended:
			return
		}
	}
}

func (s status) encode() svc.Status {
	const ends = svc.AcceptStop | svc.AcceptShutdown | svc.AcceptPreShutdown
	switch s.state {
	case running:
		return svc.Status{State: svc.Running, Accepts: ends}
	case stopPending:
		return svc.Status{State: svc.StopPending, CheckPoint: s.checkpoint, WaitHint: uint32(waitHint / time.Millisecond)}
	default:
		return svc.Status{
			State: svc.StartPending, Accepts: ends, CheckPoint: s.checkpoint, WaitHint: uint32(waitHint / time.Millisecond),
		}
	}
}

// log writes the error of the program to the event log: a service has no standard error.
func (s *service) log() {
	log, err := eventlog.Open(s.name)
	if err != nil {
		return // the manager has the exit code
	}
	defer func() { _ = log.Close() }() // it was written
	_ = log.Error(failed, s.err.Error())
}
