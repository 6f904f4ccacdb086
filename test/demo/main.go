//go:build linux

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/lab"
)

const (
	exitFailed     = 1
	exitCannot     = 2
	exitInterrupts = 130
)

func main() {
	// Threads that entered a namespace of the lab end with it, but for this one: it
	// is to enter none.
	runtime.LockOSThread()
	var o options
	flag.StringVar(&o.sluice, "sluice", "bin/sluice", "the `binary` to show")
	flag.StringVar(&o.examples, "examples", "examples", "`folder` with the manifests to copy")
	flag.Parse()
	s := newScreen(os.Stdout, os.Getenv)
	if err := o.check(); err != nil {
		os.Exit(cannot(s, err))
	}
	if err := lab.Enter(); err != nil {
		os.Exit(cannot(s, err))
	}
	go stopOnSignal(s)
	os.Exit(run(s, o))
}

// options are what the demo is made of.
type options struct {
	sluice   string
	examples string
}

// check makes the paths absolute and sees that they are there.
func (o *options) check() error {
	for _, p := range []*string{&o.sluice, &o.examples} {
		abs, err := filepath.Abs(*p)
		if err != nil {
			return fmt.Errorf("find %s: %w", *p, err)
		}
		if _, err := os.Stat(abs); err != nil {
			return fmt.Errorf("%w: run it by `make demo`, which builds everything", err)
		}
		*p = abs
	}
	return nil
}

// stopOnSignal ends the program at once: all it made ends with it.
func stopOnSignal(s *screen) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	<-signals
	s.end("Stopped. Nothing is left behind.")
	os.Exit(exitInterrupts)
}

// cannot says why there is no demo here.
func cannot(w io.Writer, err error) int {
	fmt.Fprintf(w, "\n  The demo cannot run here.\n\n  %v\n\n", err)
	return exitCannot
}

// unable is an error that is the machine's fault, not Sluice's.
type unable struct{ error }

// run gives the whole tour and returns the exit code.
func run(s *screen, o options) int {
	start := time.Now()
	before, err := lookAtMachine(os.Getppid())
	if err != nil {
		return cannot(s, err)
	}
	t := &tour{screen: s, options: o}
	err = lab.Run(t.show)
	if why := (unable{}); errors.As(t.broken, &why) {
		return cannot(s, why)
	}
	if err = errors.Join(err, t.broken); err != nil {
		t.fail("The demo broke off: %v", err)
	}
	t.leftovers(before)
	t.summary(time.Since(start))
	if len(t.failures) > 0 {
		return exitFailed
	}
	return 0
}
