package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/sluice-proxy/sluice/internal/control"
)

// place is that of the one Sluice that may write in a network namespace.
type place struct {
	listen func(context.Context) (*control.Server, error)
	log    *slog.Logger
}

func placeIn(netns int, log *slog.Logger) place {
	listen := func(ctx context.Context) (*control.Server, error) {
		return control.Listen(ctx, control.Options{NetNS: netns})
	}
	return place{listen, log}
}

const (
	againAfter  = 30 * time.Second       // from one try to take what is occupied to the next
	endingTime  = 10 * time.Second       // a daemon that was told to stop has ended by then
	dyingTime   = 3 * time.Second        // and one that was killed, also on a busy machine
	endingPause = 100 * time.Millisecond // from one look at it to the next
)

// take takes the place. It is nil without an error if a program has it that is
// no Sluice: that keeps nobody from writing.
func (p place) take(ctx context.Context) (*control.Server, error) {
	held, err := p.listen(ctx)
	if occupied(err) {
		p.log.Warn("Going on without the control socket", "error", err)
		return nil, nil
	}
	return held, err
}

// leave gives the place up, if it was taken.
func leave(held *control.Server) {
	if held != nil {
		_ = held.Close() // the end of the process does it as well
	}
}

func occupied(err error) bool {
	_, is := errors.AsType[*control.OccupiedError](err)
	return is
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

// takeOnceFree takes the place when it is occupied no more; nil: the context
// ended. Another Sluice that was quicker is told of: both write now.
func (p place) takeOnceFree(ctx context.Context) *control.Server {
	again := time.NewTicker(againAfter)
	defer again.Stop()
	for said := ""; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
		}
		held, err := p.listen(ctx)
		switch {
		case err == nil:
			p.log.Info("The control socket is free again, this daemon can be asked")
			return held
		case ctx.Err() == nil && !occupied(err) && err.Error() != said:
			said = err.Error()
			p.log.Error("Cannot take the control socket, serving goes on without", "error", err)
		}
	}
}
