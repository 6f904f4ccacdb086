package app

import (
	"context"
	"io"
	"log/slog"
	"os/exec"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

// observedPlane passes on the end of each read of the kernel, and each edit after the daemon has received it.
type observedPlane struct {
	plane.Plane
	reads chan error
	edits chan plane.Edit
}

func (p observedPlane) Refresh(ctx context.Context) error {
	err := p.Plane.Refresh(ctx)
	p.reads <- err
	return err
}

func (p observedPlane) Watch(ctx context.Context, subscribed func(), report func(plane.Edit)) error {
	return p.Plane.Watch(ctx, subscribed, func(e plane.Edit) {
		report(e)
		p.edits <- e
	})
}

// firstReadDaemon is a daemon whose feed is complete when the test delivers it.
type firstReadDaemon struct {
	*testDaemon
	plane observedPlane
	feed  *io.PipeWriter
}

// startFirstRead runs a daemon, and returns when it has read the kernel.
func startFirstRead(t *testing.T, mode string, netns int) *firstReadDaemon {
	t.Helper()
	d := &firstReadDaemon{plane: observedPlane{reads: make(chan error, 100), edits: make(chan plane.Edit, 100)}}
	o := options(t, "--proxy-mode="+mode, "--manifests=-")
	o.NetNS = netns
	o.Stdin, d.feed = io.Pipe()
	for i, k := range o.Kinds {
		o.Kinds[i].Open = func(ctx context.Context, s plane.Setup) (*plane.Opened, error) {
			opened, err := k.Open(ctx, s)
			if err == nil {
				d.plane.Plane = opened.Plane
				opened.Plane = d.plane
			}
			return opened, err
		}
	}
	d.testDaemon = run(t, o)
	if err := receive(t, d.plane.reads); err != nil {
		t.Fatalf("the daemon cannot read the kernel: %v", err)
	}
	return d
}

// deliver completes the feed, and returns the first write.
func (d *firstReadDaemon) deliver() proxy.Sync {
	d.t.Helper()
	if _, err := io.WriteString(d.feed, webService); err != nil {
		d.t.Fatal(err)
	}
	_ = d.feed.Close() // cannot fail
	s := d.sync()
	if s.Cause != proxy.Start {
		d.t.Errorf("the first write is %+v, want a start", s)
	}
	return s
}

func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(testTimeout):
		t.Fatal("nothing happens")
		panic("unreachable")
	}
}

// A daemon reads the kernel before its feeds are complete. If nothing has changed, the first write of a restart uses
// that and writes nothing. If another program has changed rules since, it reads the kernel again, and repairs them.
func TestTheKernelIsReadBeforeTheFeedsAreComplete(t *testing.T) {
	for _, tt := range []struct{ mode, table, edit string }{
		{"nftables", "sluice", "delete table ip sluice"},
		{"iptables", "nat", "flush chain ip nat KUBE-SERVICES"},
	} {
		t.Run(tt.mode, func(t *testing.T) {
			netns := kerneltest.Namespace(t)
			kerneltest.Do(t, netns, func() error { // selects the variant of iptables
				return exec.Command("iptables-nft", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT").Run()
			})
			rules := func() string { return runNft(t, netns, "-s", "list", "table", "ip", tt.table) }
			handles := func() string { return runNft(t, netns, "-s", "-a", "list", "ruleset") } // they change with each write

			d := startFirstRead(t, tt.mode, netns)
			empty := handles()
			if s := d.deliver(); s.Steps == 0 {
				t.Errorf("the first write into an empty kernel is %+v", s)
			}
			d.end(t)
			before, beforeHandles := rules(), handles()
			if beforeHandles == empty {
				t.Fatalf("no rules were written:\n%s", empty)
			}

			d = startFirstRead(t, tt.mode, netns)
			if s := d.deliver(); s.Steps != 0 || s.Adopted == 0 {
				t.Errorf("the first write after a restart is %+v, want no steps", s)
			}
			d.end(t)
			d.checkReads(t, 0)
			if after := handles(); after != beforeHandles {
				t.Errorf("a restart changed the rules:\n%s\nwant\n%s", after, beforeHandles)
			}

			d = startFirstRead(t, tt.mode, netns)
			runNft(t, netns, tt.edit)
			receive(t, d.plane.edits)
			if s := d.deliver(); s.Steps == 0 {
				t.Errorf("the first write after an edit is %+v, want a repair", s)
			}
			if after := rules(); after != before {
				t.Errorf("after the first write the rules are:\n%s\nwant\n%s", after, before)
			}
			if err := receive(t, d.plane.reads); err != nil {
				t.Error(err)
			}
			d.end(t)
		})
	}
}

func (d *firstReadDaemon) end(t *testing.T) {
	t.Helper()
	if err := d.stop(); err != nil {
		t.Errorf("the daemon ended with %v", err)
	}
}

// checkReads compares the number of reads since the first one.
func (d *firstReadDaemon) checkReads(t *testing.T, want int) {
	t.Helper()
	if got := len(d.plane.reads); got != want {
		t.Errorf("the kernel was read %d more times, want %d", got, want)
	}
}

// An edit that the plane reports makes the loop read the kernel again.
func TestAReportedEditRepeatsTheFirstRead(t *testing.T) {
	p := observedPlane{Plane: &planetest.Memory{}, reads: make(chan error, 10)}
	syncs := make(chan proxy.Sync, 10)
	n := NewNode(NodeOptions{Opened: &plane.Opened{Plane: p}, Options: proxy.Options{
		Store: cluster.NewStore(), Log: slog.New(slog.DiscardHandler), Observe: func(s proxy.Sync) { syncs <- s },
	}})
	runUntilEnd(t, "the loop", n.loop.Run) // nothing else of the node runs
	if err := receive(t, p.reads); err != nil {
		t.Fatal(err)
	}
	n.loop.Edited(plane.Edit{What: "rule"})
	n.ready()
	receive(t, syncs)
	if len(p.reads) != 1 {
		t.Errorf("the kernel was read %d more times, want once", len(p.reads))
	}
}

// runUntilEnd runs something until the test ends, and then waits for it.
func runUntilEnd(t *testing.T, what string, run func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s ended with: %v", what, err)
		}
	})
}
