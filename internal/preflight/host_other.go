//go:build !linux

package preflight

import (
	"context"
	"runtime"

	"github.com/sluice-proxy/sluice/internal/config"
)

// Read returns what the configuration says: Judge needs no fact about other systems than Linux.
func Read(ctx context.Context, c *config.Config, netns int) Facts {
	return Facts{Host: ReadHost(ctx, netns), Unprivileged: true, HardFail: c.HardFail, Detector: c.Detector}
}

// ReadHost returns the name of the system.
func ReadHost(context.Context, int) Host { return Host{System: runtime.GOOS, CPUs: runtime.NumCPU()} }
