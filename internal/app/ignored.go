package app

import (
	"context"
	"log/slog"

	"github.com/sluice-proxy/sluice/internal/route"
)

// ignored tells which Services are not programmed, and why: when that begins or
// the reason changes.
type ignored struct {
	log   *slog.Logger
	level slog.Level
}

// Applied implements proxy.Follower.
func (i ignored) Applied(c route.Change) {
	for _, t := range c.Touched {
		if t.New == nil || t.New.Ignored == "" || t.Old != nil && t.Old.Ignored == t.New.Ignored {
			continue
		}
		i.log.Log(context.Background(), i.level, "Not programmed", "service", t.Name.String(), "reason", t.New.Ignored)
	}
}
