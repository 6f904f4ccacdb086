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
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/lab"
)

const (
	exitFailed      = 1
	exitCannot      = 2
	exitInterrupted = 130
)

func main() {
	// Keep the main thread out of the namespaces of the lab.
	runtime.LockOSThread()
	var o options
	flag.StringVar(&o.sluice, "sluice", "bin/sluice", "the `binary` to show")
	flag.StringVar(&o.examples, "examples", "examples", "`folder` with the manifests to copy")
	flag.StringVar(&o.svg, "svg", "", "write an animation of a run without failures to a `file`")
	flag.StringVar(&o.chapters, "chapters", "1,6,10,15,16", "`numbers` of the chapters in the animation")
	flag.Parse()
	s := newScreen(os.Stdout, os.Getenv)
	var recorded *recorder
	if o.svg != "" {
		recorded = s.record(time.Now)
	}
	// The programs of iptables are in folders that may not be in the PATH of unprivileged users.
	err := errors.Join(o.check(), os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin"))
	if err == nil {
		err = lab.Enter()
	}
	mountBPF()
	if err != nil {
		os.Exit(cannot(s, err))
	}
	go stopOnSignal(s)
	code := run(s, o)
	if code == 0 && recorded != nil {
		lines := choose(recorded.lines, strings.Split(o.chapters, ","))
		if err := os.WriteFile(o.svg, []byte(drawSVG(lines)), 0o644); err != nil { //nolint:gosec // for everybody
			fmt.Fprintf(s, "  The animation was not written: %v\n", err)
			code = exitFailed
		}
	}
	os.Exit(code)
}

// mountBPF mounts the file system that mode ebpf needs, in the mount namespace of this process. Without it preflight
// says what the mode lacks.
func mountBPF() { _ = unix.Mount("bpf", "/sys/fs/bpf", "bpf", 0, "") }

// options are the flags.
type options struct {
	sluice   string
	examples string
	svg      string
	chapters string
}

// check makes the paths absolute and verifies that the files exist.
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

// stopOnSignal exits on a signal. Everything that the program created ends with it.
func stopOnSignal(s *screen) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	<-signals
	s.end("Stopped. Nothing is left behind.")
	os.Exit(exitInterrupted)
}

// cannot prints why the demo cannot run on this machine.
func cannot(w io.Writer, err error) int {
	fmt.Fprintf(w, "\n  The demo cannot run here.\n\n  %v\n\n", err)
	return exitCannot
}

// run runs all chapters and returns the exit code.
func run(s *screen, o options) int {
	start := time.Now()
	before, err := machineNetwork(os.Getppid())
	if err != nil {
		return cannot(s, err)
	}
	t := &tour{screen: s, options: o}
	err = errors.Join(lab.Run(t.show), t.err)
	if errors.Is(t.err, errCannot) {
		return cannot(s, t.err)
	}
	if err != nil {
		t.fail("The demo ended early: %v", err)
	}
	t.leftovers(before)
	t.summary(time.Since(start))
	if len(t.failures) > 0 {
		return exitFailed
	}
	return 0
}
