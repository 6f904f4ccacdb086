package cli

import (
	"context"
	"log/slog"

	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/kernel/handover"
)

// standByName is the name of a value in the Handover to a run that stands by.
const standByName = "stand by"

// before returns what this run goes on with. It waits while another Sluice has the place of this one.
func before(ctx context.Context, o app.Options) (*handover.Handover, error) {
	standBy := false
	if err := o.Before.Get(standByName, &standBy); err != nil {
		return nil, err
	}
	switch {
	case standBy:
		return app.StandBy(ctx, o)
	case o.Before == nil && o.Config.Replace:
		return app.TakeOver(ctx, o)
	}
	return o.Before, nil
}

// pass passes a Handover to another process, if it is for one, and returns the Handover for the next run of
// this process: to stand by, or to go on if that failed.
func pass(log *slog.Logger, next *handover.Handover) *handover.Handover {
	if next.To == nil {
		return next
	}
	if err := next.Send(); err != nil {
		log.Warn("Another Sluice did not take the place of this one; going on", "error", err)
		return next
	}
	log.Info("Another Sluice has taken the place of this one")
	idle := &handover.Handover{}
	if err := idle.Put(standByName, true); err != nil {
		log.Error("Cannot stand by", "error", err)
	}
	return idle
}
