// Command sluice is a Kubernetes service proxy; see internal/cli.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/sluice-proxy/sluice/internal/cli"
)

func main() {
	// What enters another network namespace does so with a thread that ends with
	// it. The first thread of a process cannot end, so it is kept from that: the
	// process would be taken for one of that namespace.
	runtime.LockOSThread()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	os.Exit(cli.Main(ctx, os.Args, cli.Env{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Hostname: os.Hostname, Hangup: hangup, Synced: saveMemory(),
	}))
}
