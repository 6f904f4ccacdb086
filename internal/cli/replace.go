package cli

import (
	"context"
	"log/slog"

	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/kernel/handover"
)

// standByName is the name of a value in the Handover to a run that stands by.
const standByName = "stand by"

// standsBy reports whether the previous run has handed over to another process.
func (e Env) standsBy() (standBy bool, err error) {
	err = e.Before.Get(standByName, &standBy)
	return standBy, err
}

// standBy waits until the program is to be executed anew, with the configuration of that time.
func (e Env) standBy(ctx context.Context, o app.Options, logs *logs) error {
	next, err := app.StandBy(ctx, o)
	if err != nil || next == nil {
		return err
	}
	logs.Flush()
	return e.Execute(next)
}

// pass passes a Handover to another process, if it is for one, and returns the Handover for the next run of
// this process: to stand by, or to go on if that failed.
func pass(log *slog.Logger, next *handover.Handover) *handover.Handover {
	if next.To == nil {
		return next
	}
	if err := next.Send(); err != nil {
		log.Warn("Handover failed; this Sluice goes on", "error", err)
		return next
	}
	log.Info("Handed over to another Sluice")
	idle := &handover.Handover{}
	if err := idle.Put(standByName, true); err != nil {
		log.Error("Cannot stand by", "error", err)
	}
	return idle
}
