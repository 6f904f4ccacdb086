package app

import (
	"context"
	"errors"
	"net"
	"os"
	"time"

	"github.com/sluice-proxy/sluice/internal/control"
	"github.com/sluice-proxy/sluice/internal/kernel/handover"
)

// succeed hands over to the process at the other end of a connection.
func (d *daemon) succeed(ctx context.Context, to *net.UnixConn) error {
	if err := handover.Possible(); err != nil { // it goes on by executing itself anew if the other process fails
		return err
	}
	h, err := d.handOver(ctx, carried{})
	if err != nil {
		return err
	}
	h.To = to
	d.o.Log.Info("Handing over to another Sluice")
	d.o.Replace(h)
	return nil
}

// TakeOver makes the Sluice that holds the lock hand over, and returns what it hands over; nil: none runs.
// If it fails, the other one goes on.
func TakeOver(ctx context.Context, o Options) (*handover.Handover, error) {
	if err := errors.Join(Check(ctx, o), reachable(ctx, o)); err != nil {
		return nil, err
	}
	l := newLock(o)
	held, err := l.acquire(ctx)
	running, taken := errors.AsType[*control.TakenError](err)
	if !taken {
		return alone(held, err)
	}
	o.Log.Info("Asking the running Sluice to hand over", "pid", running.PID)
	h, err := handedOver(ctx, l.options)
	if errors.Is(err, handover.ErrFormat) {
		o.Log.Warn("Only the lock and the open ports were handed over", "error", err)
		return h, nil
	}
	if err == nil || ctx.Err() != nil {
		return h, err
	}
	held, lockErr := l.acquireWithin(ctx, afterKill)
	if lockErr != nil { // the other one goes on
		return nil, err
	}
	o.Log.Warn("The running Sluice ended without a handover", "error", err)
	return alone(held, nil)
}

// reachableTimeout bounds the question to the API server.
const reachableTimeout = 10 * time.Second

// reachable returns why the API server would not answer this process. The running Sluice may have one that does.
func reachable(ctx context.Context, o Options) error {
	if len(o.Config.Manifests) > 0 {
		return nil
	}
	c, err := dial(o.Config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, reachableTimeout)
	defer cancel()
	return c.Reachable(ctx)
}

// handedOver returns what the holder of the lock hands over.
func handedOver(ctx context.Context, o control.Options) (*handover.Handover, error) {
	c, err := control.Succeed(ctx, o)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	return handover.Accept(c)
}

// alone returns a Handover with a lock only.
func alone(held *control.Server, err error) (*handover.Handover, error) {
	if held == nil || err != nil {
		return nil, err
	}
	defer release(held) // the file holds the lock
	file, err := held.File()
	if err != nil {
		return nil, err
	}
	return &handover.Handover{Files: map[string]*os.File{lockName: file}}, nil
}

// standByPeriod is the time between two looks at the lock.
const standByPeriod = time.Second

// StandBy waits until no other Sluice holds the lock, and returns a Handover with it; nil: the context ended.
func StandBy(ctx context.Context, o Options) (*handover.Handover, error) {
	o.Log.Info("Standing by: serving nothing until the Sluice that took over ends")
	l, last := newLock(o), ""
	for {
		held, err := l.acquire(ctx)
		_, taken := errors.AsType[*control.TakenError](err)
		switch {
		case ctx.Err() != nil:
			release(held)
			return nil, nil
		case err == nil:
			o.Log.Warn("The Sluice that took over has ended; starting again")
			return alone(held, nil)
		case !taken && err.Error() != last:
			last = err.Error()
			o.Log.Error("Cannot see whether the Sluice that took over has ended", "error", err)
		}
		if rest(ctx, standByPeriod) != nil {
			return nil, nil
		}
	}
}
