package cli

import (
	"io"
	"log/slog"

	"github.com/sluice-proxy/sluice/internal/config"
)

// debugFrom is the -v from which everything is logged.
const debugFrom = 4

// newLog makes the logger that a configuration asks for.
func newLog(c config.Logging, w io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{Level: slog.LevelInfo}
	if c.Verbosity >= debugFrom {
		opts.Level = slog.LevelDebug
	}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}
