package app

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/control"
	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/text/texttest"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

// patience is for a machine that is busy; nothing here takes a second.
const patience = 20 * time.Second

// running is the proxy at work in a namespace.
type running struct {
	t     testing.TB
	syncs chan proxy.Sync
	stop  func() error // ends it and returns what it ended with
}

func run(t testing.TB, o Options) *running {
	t.Helper()
	r := &running{t: t, syncs: make(chan proxy.Sync, 100)}
	o.Synced = func(s proxy.Sync) { r.syncs <- s }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, o) }()
	ended := false
	r.stop = func() error {
		ended = true
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(patience):
			t.Fatal("does not stop")
			return nil
		}
	}
	t.Cleanup(func() {
		if !ended {
			_ = r.stop()
		}
	})
	return r
}

// sync waits for the next write.
func (r *running) sync() proxy.Sync {
	r.t.Helper()
	select {
	case s := <-r.syncs:
		if s.Err != nil {
			r.t.Fatalf("cannot write: %v", s.Err)
		}
		return s
	case <-time.After(patience):
		r.t.Fatal("nothing is written")
		return proxy.Sync{}
	}
}

// drain takes writes that nobody asks about until the test ends, as the loop
// waits for room.
func (r *running) drain() {
	go func() {
		for {
			select {
			case <-r.t.Context().Done():
				return
			case <-r.syncs:
			}
		}
	}()
}

// From the first start to the last: what is in the kernel stays over a restart,
// follows the files, and goes with a cleanup.
func TestLifeOfANode(t *testing.T) {
	path := manifests(t, webService)
	o := options(t, "--manifests="+path)
	o.NetNS = kerneltest.Namespace(t)

	r := run(t, o)
	first := r.sync()
	if !first.Full() || first.Services != 1 || first.Steps == 0 {
		t.Errorf("the first write is %+v, want all of one service", first)
	}
	if err := r.stop(); err != nil {
		t.Fatalf("ended with %v", err)
	}

	r = run(t, o)
	if again := r.sync(); !again.Full() || again.Steps != 0 {
		t.Errorf("a restart with nothing changed writes %d steps, want 0", again.Steps)
	}
	scaled := strings.Replace(webService, "endpoints: [", "endpoints: [{addresses: [10.244.1.6]}, ", 1)
	if err := os.WriteFile(path, []byte(scaled), 0o600); err != nil {
		t.Fatal(err)
	}
	change := r.sync()
	if change.Full() || change.Services != 1 || change.Steps == 0 || change.Steps >= first.Steps {
		t.Errorf("one endpoint more is %+v, want fewer steps than the %d of the start", change, first.Steps)
	}
	if err := r.stop(); err != nil {
		t.Fatalf("ended with %v", err)
	}

	for range 2 { // the second has nothing to do
		if _, err := Cleanup(t.Context(), o); err != nil {
			t.Fatalf("cleanup: %v", err)
		}
	}
	r = run(t, o)
	if anew := r.sync(); anew.Steps < first.Steps {
		t.Errorf("after a cleanup %d steps are written, want all %d: something was left", anew.Steps, first.Steps)
	}
}

// Beside a daemon nothing is removed, as it would come back. One that is about to
// end is waited for.
func TestCleanupWaitsForTheDaemonToEnd(t *testing.T) {
	o := options(t, "--manifests="+manifests(t, webService))
	o.NetNS = kerneltest.Namespace(t)
	r := run(t, o)
	r.sync()
	before := runNft(t, o.NetNS, "list", "ruleset")
	removed, err := cleanup(t.Context(), o, lockPeriod)
	if taken, ok := errors.AsType[*control.TakenError](err); !ok || taken.PID != os.Getpid() || removed != nil {
		t.Errorf("beside a daemon it removed %v, %v, want that named and nothing removed", removed, err)
	}
	if after := runNft(t, o.NetNS, "list", "ruleset"); after != before {
		t.Errorf("beside a daemon there is left:\n%s\nwant\n%s", after, before)
	}

	waiting, done := &texttest.Buffer{}, make(chan error, 1)
	o.Log = slog.New(slog.NewTextHandler(waiting, nil))
	go func() {
		_, err := cleanup(t.Context(), o, patience)
		done <- err
	}()
	said := ""
	for end := time.Now().Add(patience); !strings.Contains(said, "Waiting for a Sluice"); time.Sleep(time.Millisecond) {
		if said += waiting.Take(); len(done) > 0 || time.Now().After(end) {
			t.Fatalf("it does not wait, and says:\n%s", said)
		}
	}
	if err := r.stop(); err != nil {
		t.Fatalf("the daemon ended with %v", err)
	}
	if err := <-done; err != nil {
		t.Errorf("after the end of the daemon: %v", err)
	}
	said += waiting.Take()
	if n := strings.Count(said, "Waiting for a Sluice"); n != 1 {
		t.Errorf("said %d times that it waits:\n%s", n, said)
	}
	if after := runNft(t, o.NetNS, "list", "ruleset"); after != "" {
		t.Errorf("there is left:\n%s", after)
	}
	if held, err := newLock(o.NetNS, o.Log).acquire(t.Context()); held == nil || err != nil {
		t.Errorf("afterwards the place is not free: %v", err)
	} else {
		release(held)
	}
}

// The first thing a daemon does is to take its place: the second touches
// nothing, not even to find out what the kernel can do.
func TestTheSecondDoesNotTryTheKernel(t *testing.T) {
	o := options(t, "--manifests="+manifests(t, webService))
	o.NetNS = kerneltest.Namespace(t)
	held, err := newLock(o.NetNS, o.Log).acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer release(held)
	runNft(t, o.NetNS, "add table ip before")
	err = Run(t.Context(), o)
	if _, taken := errors.AsType[*control.TakenError](err); !taken {
		t.Errorf("Run = %v, want a TakenError", err)
	}
	runNft(t, o.NetNS, "add table ip after")
	want := "table ip before { # handle 1\n}\ntable ip after { # handle 2\n}\n" // numbered as they are made
	if got := runNft(t, o.NetNS, "-a", "list", "ruleset"); got != want {
		t.Errorf("there is\n%s\nwant\n%s", got, want)
	}
}

func TestRunNeedsASource(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	o := options(t)
	o.NetNS = kerneltest.Namespace(t)
	err := Run(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), "no API server is named") {
		t.Errorf("Run = %v, want it to ask for the API server", err)
	}
}

func TestCheckWritesNothing(t *testing.T) {
	o := options(t, "--manifests="+manifests(t, webService))
	o.NetNS = kerneltest.Namespace(t)
	if err := Check(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	r := run(t, o)
	if s := r.sync(); s.Steps == 0 {
		t.Error("after a check there is nothing left to write")
	}
}
