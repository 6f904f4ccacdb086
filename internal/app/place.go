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

// takeAfter is take that gives a daemon time to end.
func (p place) takeAfter(ctx context.Context, wait time.Duration) (*control.Server, error) {
	waited := time.Duration(0)
	for {
		held, err := p.take(ctx)
		if _, taken := errors.AsType[*control.TakenError](err); !taken || waited >= wait {
			return held, err
		}
		if waited == 0 {
			p.log.Info("Waiting for a Sluice that may be about to end", "holder", err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for another Sluice to end: %w", ctx.Err())
		case <-time.After(endingPause):
			waited += endingPause
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
