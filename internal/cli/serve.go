package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/handover"
	"github.com/sluice-proxy/sluice/internal/source/kube"
	"github.com/sluice-proxy/sluice/internal/windows/service"
)

// serviceName is the name of kube-proxy's service.
const serviceName = "kube-proxy"

// asService runs a program as a service of Windows.
func (e Env) asService(ctx context.Context, program service.Program) error {
	err := e.Service(ctx, serviceName, program)
	if errors.Is(err, service.ErrNoManager) {
		return fmt.Errorf("%w: --windows-service (windowsRunAsService) works only in a Windows service, "+
			`installed with sc.exe create %s binPath= "..."; remove the setting to run Sluice in a terminal`, err, serviceName)
	}
	return err
}

// run serves until the context ends, or until another run of the program is to follow.
func (e Env) run(ctx context.Context, o app.Options) (next *handover.Handover, err error) {
	if e.Service == nil || !o.Config.WindowsService {
		return serve(ctx, o)
	}
	err = e.asService(ctx, func(ctx context.Context) (err error) {
		o.Log.Info("Running as a service of Windows", "name", serviceName)
		next, err = serve(ctx, o)
		if err != nil { // standard error of a service leads nowhere
			o.Log.Error("Stopping after an error", "error", err)
		}
		return err
	})
	return next, err
}

// serve runs the proxy until the context ends, or until a changed configuration makes the program re-execute itself;
// then it returns the Handover for the next run. It waits up to writeTime for the end of the current write.
func serve(ctx context.Context, o app.Options) (*handover.Handover, error) {
	kube.DemoteLibraries(o.Log)
	running, stop := context.WithCancel(ctx)
	defer stop()
	done, written := make(chan error, 1), make(chan struct{})
	next := make(chan *handover.Handover, 1)
	o.Written = func() { close(written) }
	o.Replace = func(h *handover.Handover) {
		next <- h
		stop()
	}
	go func() { done <- app.Run(running, o) }()
	select {
	case err := <-done:
		if running.Err() == nil || err != nil {
			return nil, err
		}
	case <-running.Done():
		if err := waitFor(done, written); err != nil && !errors.Is(err, context.Canceled) {
			return nil, err
		}
	}
	select {
	case h := <-next:
		if ctx.Err() == nil {
			return h, nil
		}
		if err := h.Finish(); err != nil { // Close needs all files of the handover
			o.Log.Warn("Stopping before the restarted program took over", "error", err)
		}
		h.Close()
	default:
	}
	o.Log.Info("Stopped; " + app.AfterStop(o))
	return nil, nil
}

const (
	// grace is how long parts may take to stop after the last write.
	grace = 800 * time.Millisecond

	// writeTime is how long the current write may take once the program is asked to stop. It is a little more than the
	// longest timeout of a write, and less than the 30 s after which Kubernetes and the systemd unit kill the program.
	writeTime = 22 * time.Second
)

// waitFor waits for a result until written is closed, at most for writeTime, and then for the grace period.
func waitFor(done <-chan error, written <-chan struct{}) error {
	select {
	case err := <-done:
		return err
	case <-written:
	case <-time.After(writeTime):
	}
	select {
	case err := <-done:
		return err
	case <-time.After(grace):
		return nil
	}
}
