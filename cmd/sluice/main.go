// Command sluice is a Kubernetes service proxy; see internal/cli.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/sluice-proxy/sluice/internal/cli"
)

// gcPercent trades a little CPU, which a quiet node has, for a smaller peak at
// the first load. GOGC in the environment wins.
const gcPercent = 50

func main() {
	if _, said := os.LookupEnv("GOGC"); !said {
		debug.SetGCPercent(gcPercent)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	os.Exit(cli.Main(ctx, os.Args, cli.Env{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Hostname: os.Hostname, ReadFile: os.ReadFile, Hangup: hangup,
	}))
}
