//go:build !linux

package preflight

import (
	"context"
	"runtime"

	"github.com/sluice-proxy/sluice/internal/config"
)

// Host returns what the configuration says: the facts about a host are those of Linux.
func Host(_ context.Context, c *config.Config, _ int) Facts {
	return Facts{Unprivileged: true, HardFail: c.HardFail, Detector: c.Detector, System: runtime.GOOS}
}
