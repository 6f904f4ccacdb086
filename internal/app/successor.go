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
	h, err := d.handOver(ctx, carried{})
	if err != nil {
		return err
	}
	h.To = to
	d.o.Log.Info("Another Sluice takes the place of this one")
	d.o.Replace(h)
	return nil
}

// TakeOver takes the place of the Sluice that holds the lock. It returns what that one hands over; nil: none runs.
// If it fails, the other one goes on.
func TakeOver(ctx context.Context, o Options) (*handover.Handover, error) {
	if err := Check(ctx, o); err != nil {
		return nil, err
	}
	if len(o.Config.Manifests) == 0 {
		if _, err := dial(o.Config); err != nil {
			return nil, err
		}
	}
	l := newLock(o)
	held, err := l.acquire(ctx)
	if _, taken := errors.AsType[*control.TakenError](err); !taken {
		return alone(held, err)
	}
	o.Log.Info("Taking the place of the Sluice that runs here", "running", err)
	c, err := control.Succeed(ctx, l.options)
	if err != nil {
		return nil, err
	}
	h, err := handover.Accept(c)
	if errors.Is(err, handover.ErrFormat) {
		o.Log.Warn("Only the lock and the ports are taken over", "error", err)
		err = nil
	}
	return h, err
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
	o.Log.Info("Standing by: another Sluice has taken the place of this one, which serves nothing until that one ends")
	l := newLock(o)
	for {
		held, err := l.acquire(ctx)
		if _, taken := errors.AsType[*control.TakenError](err); !taken && ctx.Err() == nil {
			o.Log.Warn("The Sluice that took the place of this one has ended; starting again")
			return alone(held, err)
		}
		if rest(ctx, standByPeriod) != nil {
			return nil, nil
		}
	}
}
