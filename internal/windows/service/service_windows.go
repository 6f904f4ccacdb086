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

// stopTime is how long the manager waits for the end of a service that it has told to stop.
const stopTime = time.Minute

// Run runs a program as the service with a name, until it ends. It returns the error of the program,
// which it also writes to the event log, or ErrNoManager.
func Run(ctx context.Context, name string, program Program) error {
	s := &service{ctx: ctx, program: program}
	err := svc.Run(name, s)
	if errors.Is(err, windows.ERROR_FAILED_SERVICE_CONTROLLER_CONNECT) {
		return ErrNoManager
	}
	if err != nil {
		err = fmt.Errorf("run as a service of Windows: %w", err)
	}
	if s.err != nil {
		logFailure(name, s.err)
	}
	return errors.Join(s.err, err)
}

// service is a svc.Handler.
type service struct {
	ctx     context.Context
	program Program
	err     error // of the program
}

// Execute implements svc.Handler. As kube-proxy, the service is running at once, and only a request of the manager ends
// it: Windows sends signals to services when users log off.
func (s *service) Execute(
	_ []string, requests <-chan svc.ChangeRequest, reports chan<- svc.Status,
) (specific bool, code uint32) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.ctx))
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.program(ctx) }()
	now := svc.Status{State: svc.Running, Accepts: svc.AcceptStop | svc.AcceptShutdown | svc.AcceptPreShutdown}
	reports <- now
	for {
		select {
		case s.err = <-ended:
			if s.err != nil {
				return true, failed
			}
			return false, 0
		case r := <-requests:
			switch r.Cmd {
			case svc.Stop, svc.Shutdown, svc.PreShutdown:
				now = svc.Status{State: svc.StopPending, WaitHint: uint32(stopTime / time.Millisecond)}
				cancel()
			default:
			}
			reports <- now
		}
	}
}

// logFailure writes an error to the event log: a service has no standard error.
func logFailure(name string, failure error) {
	log, err := eventlog.Open(name)
	if err != nil {
		return // the manager has the exit code
	}
	defer func() { _ = log.Close() }() // it was written
	_ = log.Error(failed, failure.Error())
}
