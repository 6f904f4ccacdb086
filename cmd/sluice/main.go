// Command sluice is a Kubernetes service proxy; see internal/cli.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/sluice-proxy/sluice/internal/cli"
	"github.com/sluice-proxy/sluice/internal/handover"
	"github.com/sluice-proxy/sluice/internal/windows/service"
)

func main() {
	// A thread that enters another network namespace ends there. The first thread of a process cannot end, so it is kept
	// from that: the process would be taken for one of that namespace.
	runtime.LockOSThread()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	before, err := handover.Receive()
	if err != nil {
		fmt.Fprintln(os.Stderr, "sluice:", err)
		os.Exit(1)
	}
	os.Exit(cli.Main(ctx, os.Args, cli.Env{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Hostname: os.Hostname, Hangup: hangup, Synced: saveMemory(),
		Service: services(),
		Before:  before, Execute: func(next *handover.Handover) error { return execute(ctx, next) },
	}))
}

// services returns the function that runs a program as a service; nil on systems other than Windows.
func services() func(context.Context, string, service.Program) error {
	if runtime.GOOS != "windows" {
		return nil
	}
	return service.Run
}

// execute executes the program again, unless ctx has ended.
func execute(ctx context.Context, next *handover.Handover) error {
	signal.Ignore(syscall.SIGHUP)               // until the new run handles it: a signal before would end the process
	signal.Reset(os.Interrupt, syscall.SIGTERM) // from here on they end the process at once
	if ctx.Err() != nil {
		return nil
	}
	return next.Exec(os.Args)
}
