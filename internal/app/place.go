package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/sluice-proxy/sluice/internal/control"
)

// place takes the lock of the one Sluice that may write in a network namespace.
type place struct {
	options control.Options
	listen  func(context.Context) (*control.Server, error)
	log     *slog.Logger
}

func placeIn(netns int, log *slog.Logger) place {
	o := control.Options{NetNS: netns, MaxConns: budget(log).Control}
	return place{o, func(ctx context.Context) (*control.Server, error) { return control.Listen(ctx, o) }, log}
}

// adopt returns the lock that the run of this program before has passed on.
func (p place) adopt(file *os.File) (*control.Server, error) { return control.Adopt(file, p.options) }

const (
	endingTime  = 10 * time.Second       // a daemon that was told to stop has ended by then
	dyingTime   = 3 * time.Second        // and one that was killed, also on a busy machine
	endingPause = 100 * time.Millisecond // from one look at it to the next
)

// take takes the lock. It is nil without an error if the kernel has nothing that
// can be the lock: the node is served all the same.
func (p place) take(ctx context.Context) (*control.Server, error) {
	held, err := p.listen(ctx)
	if errors.Is(err, control.ErrUnsupported) {
		p.log.Warn("Going on without a lock against a second Sluice; sluice get, status, diff and explain do not work", "error", err)
		return nil, nil
	}
	return held, err
}

// leave releases the lock, if it was taken.
func leave(held *control.Server) {
	if held != nil {
		_ = held.Close() // the end of the process does it as well
	}
}

// given is how long the daemon that has the place is given to end.
type given func(*control.TakenError) time.Duration

// toEnd is for a daemon that was told to stop.
func toEnd(wait time.Duration) given {
	return func(*control.TakenError) time.Duration { return wait }
}

// toDie is for one that was killed: it says nothing of itself, and holds the
// place until the kernel has taken it apart. One that lives is given no time.
func toDie(holder *control.TakenError) time.Duration {
	if holder.Holder != nil {
		return 0
	}
	return dyingTime
}

// takeAfter is take that gives a daemon time.
func (p place) takeAfter(ctx context.Context, wait given) (*control.Server, error) {
	began := time.Now() // to ask who it is takes time as well
	for said := false; ; said = true {
		held, err := p.take(ctx)
		if holder, taken := errors.AsType[*control.TakenError](err); !taken || time.Since(began) >= wait(holder) {
			return held, err
		}
		if !said {
			p.log.Info("Waiting for a Sluice that may be about to end", "holder", err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for another Sluice to end: %w", ctx.Err())
		case <-time.After(endingPause):
		}
	}
}
