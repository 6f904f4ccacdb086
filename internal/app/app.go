// Package app builds all parts of the program in order, passes each what it needs, and runs them until the first ends.
package app

import (
	"context"
	"io"
	"log/slog"
	"os"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/handover"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/proxy"
)

// Options for Run.
type Options struct {
	Config *config.Config
	Kinds  []plane.Kind // all data planes, such as Kinds(); Config.Mode is one of them
	Log    *slog.Logger
	Stdin  io.Reader        // for "--manifests -"
	NetNS  int              // file descriptor of the network namespace to serve; 0: the current one
	Synced func(proxy.Sync) // called after each attempt to write; may be nil

	// Written is called once when the context has ended and no more rules are
	// written, unless Run ends before it writes any. It may be nil.
	Written func()

	Warnings []string // about Config: deprecated settings, and those without effect

	Reason  string            // why Config.Mode is the mode
	Version string            // of this program
	Flags   map[string]string // the command line, for /flagz

	SetVerbosity func(level int) // sets how much is logged; needed if Config.Profiling is set

	// Load reads the command line and File again; File is empty if there is none.
	Load func() (*config.Config, []string, error)
	File string

	// Replace ends this run of the program and begins the next, which gets the
	// Handover as Before. It returns at once. It is needed if there is a File.
	Replace func(*handover.Handover)
	Before  *handover.Handover // nil: another process started this one

	// Compare requests that the configuration be read, and everything be compared with the kernel.
	Compare <-chan os.Signal
}

// Run serves until the context ends. The rules stay in the kernel.
func Run(ctx context.Context, o Options) error {
	d, err := newDaemon(ctx, o)
	if err != nil {
		return err
	}
	return d.run(ctx)
}
