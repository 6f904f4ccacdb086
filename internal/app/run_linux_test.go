package app

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/internal/testing/texttest"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

// testTimeout allows for a busy machine; no test waits for a second otherwise.
const testTimeout = time.Minute

// testDaemon is a daemon in a namespace.
type testDaemon struct {
	t     testing.TB
	syncs chan proxy.Sync
	stop  func() error // stops it and returns the result of Run
}

func run(t testing.TB, o Options) *testDaemon {
	t.Helper()
	r := &testDaemon{t: t, syncs: make(chan proxy.Sync, 100)}
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
		case <-time.After(testTimeout):
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
func (r *testDaemon) sync() proxy.Sync {
	r.t.Helper()
	select {
	case s := <-r.syncs:
		if s.Err != nil {
			r.t.Fatalf("cannot write: %v", s.Err)
		}
		return s
	case <-time.After(testTimeout):
		r.t.Fatal("nothing is written")
		return proxy.Sync{}
	}
}

// drain discards writes until the test ends, as the loop blocks when the channel is full.
func (r *testDaemon) drain() {
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

// The rules stay over a restart, follow the manifests, and are deleted by a cleanup.
func TestLifeOfANode(t *testing.T) {
	path := manifests(t, webService)
	o := options(t, "--manifests="+path)
	o.NetNS = kerneltest.Namespace(t)

	r := run(t, o)
	first := r.sync()
	if !first.Full() || first.Services != 1 || first.Steps == 0 {
		t.Errorf("the first write is %+v, want a comparison with one Service", first)
	}
	if err := r.stop(); err != nil {
		t.Fatalf("ended with %v", err)
	}

	r = run(t, o)
	if again := r.sync(); !again.Full() || again.Steps != 0 {
		t.Errorf("a restart without a change writes %d steps, want 0", again.Steps)
	}
	scaled := strings.Replace(webService, "endpoints: [", "endpoints: [{addresses: [10.244.1.6]}, ", 1)
	if err := os.WriteFile(path, []byte(scaled), 0o600); err != nil {
		t.Fatal(err)
	}
	change := r.sync()
	if change.Full() || change.Services != 1 || change.Steps == 0 || change.Steps >= first.Steps {
		t.Errorf("one more endpoint is %+v, want fewer steps than the %d of the start", change, first.Steps)
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
	if next := r.sync(); next.Steps < first.Steps {
		t.Errorf("after a cleanup %d steps are written, want all %d: rules were left", next.Steps, first.Steps)
	}
}

// While a daemon runs, a cleanup removes nothing, as the daemon would add it again. It
// waits for a daemon that is about to end.
func TestCleanupWaitsForTheDaemonToEnd(t *testing.T) {
	o := options(t, "--manifests="+manifests(t, webService))
	o.NetNS = kerneltest.Namespace(t)
	r := run(t, o)
	r.sync()
	before := runNft(t, o.NetNS, "list", "ruleset")
	removed, err := cleanup(t.Context(), o, lockPeriod)
	if taken, ok := errors.AsType[*admin.TakenError](err); !ok || taken.PID != os.Getpid() || removed != nil {
		t.Errorf("while a daemon runs: removed %v, %v, want an error with the daemon and nothing removed", removed, err)
	}
	if after := runNft(t, o.NetNS, "list", "ruleset"); after != before {
		t.Errorf("while a daemon runs a cleanup leaves:\n%s\nwant\n%s", after, before)
	}

	log, done := &texttest.Buffer{}, make(chan error, 1)
	o.Log = slog.New(slog.NewTextHandler(log, nil))
	go func() {
		_, err := cleanup(t.Context(), o, testTimeout)
		done <- err
	}()
	text := ""
	for end := time.Now().Add(testTimeout); !strings.Contains(text, "Waiting for another"); time.Sleep(time.Millisecond) {
		if text += log.Take(); len(done) > 0 || time.Now().After(end) {
			t.Fatalf("the cleanup does not wait:\n%s", text)
		}
	}
	if err := r.stop(); err != nil {
		t.Fatalf("the daemon ended with %v", err)
	}
	if err := <-done; err != nil {
		t.Errorf("after the end of the daemon: %v", err)
	}
	text += log.Take()
	if n := strings.Count(text, "Waiting for another Sluice"); n != 1 {
		t.Errorf("the wait is logged %d times:\n%s", n, text)
	}
	if after := runNft(t, o.NetNS, "list", "ruleset"); after != "" {
		t.Errorf("rules are left:\n%s", after)
	}
	if held, err := newLock(o.control(), o.Log).acquire(t.Context()); held == nil || err != nil {
		t.Errorf("the lock is not free afterwards: %v", err)
	} else {
		release(held)
	}
}

// A daemon acquires the lock before anything else: a second daemon does not even probe the kernel.
func TestTheSecondDaemonDoesNotProbeTheKernel(t *testing.T) {
	o := options(t, "--manifests="+manifests(t, webService))
	o.NetNS = kerneltest.Namespace(t)
	held, err := newLock(o.control(), o.Log).acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer release(held)
	runNft(t, o.NetNS, "add table ip before")
	err = Run(t.Context(), o)
	if _, taken := errors.AsType[*admin.TakenError](err); !taken {
		t.Errorf("Run = %v, want a TakenError", err)
	}
	runNft(t, o.NetNS, "add table ip after")
	// Handles are numbered in the order of creation.
	want := "table ip before { # handle 1\n}\ntable ip after { # handle 2\n}\n"
	if got := runNft(t, o.NetNS, "-a", "list", "ruleset"); got != want {
		t.Errorf("the ruleset is\n%s\nwant\n%s", got, want)
	}
}

func TestRunNeedsASource(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	o := options(t)
	o.NetNS = kerneltest.Namespace(t)
	err := Run(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), "no API server is named") {
		t.Errorf("Run = %v, want an error about the missing API server", err)
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
		t.Error("the check has written rules")
	}
}
