package ebpf

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

// If maps can never be written again, their programs are detached after a while. Later ones have new maps.
func TestProgramsWithStaleMapsAreDetached(t *testing.T) {
	o := testOptions(t)
	conn, err := bpf.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // the maps go with the bpffs
	p := New(conn, Options{Packets: noPackets{}})
	attached := func(want bool) {
		t.Helper()
		state, err := conn.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, is := state[bpf.Key{Table: bpf.Programs}]; is != want {
			t.Errorf("programs are attached: %t, want %t", is, want)
		}
	}
	all := planetest.Compile(planetest.EveryShape(), route.Options{ListLocal: true})
	few := all
	few.Table = &route.Table{Host: all.Table.Host}
	apply(t, p, few)
	for _, name := range []string{"slots", "members"} {
		paths, err := filepath.Glob(filepath.Join(o.Dir, "maps-*", name))
		if err != nil || len(paths) != 1 {
			t.Fatalf("maps %v: %v", paths, err)
		}
		m, err := ebpf.LoadPinnedMap(paths[0], nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Freeze(); err != nil { // user space cannot write it any more
			t.Fatal(err)
		}
		_ = m.Close() // nothing was written to it
	}
	fails := func(want string) {
		t.Helper()
		if err := p.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := p.Plan(all).Apply(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	fails("operation not permitted")
	attached(true)
	p.failing = p.failing.Add(-time.Hour)
	fails("all connections are translated by packet")
	attached(false)
	apply(t, p, all)
	attached(true)
}

// interrupted is a packet plane whose Refresh is interrupted.
type interrupted struct {
	noPackets
	stop func()
}

func (i interrupted) Refresh(ctx context.Context) error {
	i.stop()
	return ctx.Err()
}

// After an interrupted Refresh a change compares only what it touches.
func TestInterruptedRefresh(t *testing.T) {
	p := New(newFake(), Options{Packets: noPackets{}})
	change := planetest.Compile(planetest.EveryShape(), route.Options{ListLocal: true})
	apply(t, p, change)
	ctx, stop := context.WithCancel(t.Context())
	p.opt.Packets = interrupted{stop: stop}
	if err := p.Refresh(ctx); err == nil {
		t.Fatal("no error")
	}
	if n := p.Plan(route.Change{Table: change.Table}).Kept(); n > 0 {
		t.Errorf("a change of nothing compares %d entries", n)
	}
}
