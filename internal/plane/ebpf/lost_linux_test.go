package ebpf

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
	"github.com/sluice-proxy/sluice/test/lab"
)

// countingPackets counts the writes of rules.
type countingPackets struct {
	noPackets
	applied int
}

func (p *countingPackets) Plan(c route.Change) plane.Plan {
	return countingPlan{p.noPackets.Plan(c), &p.applied}
}

type countingPlan struct {
	plane.Plan
	applied *int
}

func (p countingPlan) Apply(ctx context.Context) error {
	*p.applied++
	return p.Plan.Apply(ctx)
}

// When the cgroup is deleted, rules are still written. The error is reported all the same.
func TestRulesAreWrittenWithoutTheCgroup(t *testing.T) {
	kerneltest.NeedPrograms(t)
	cgroup := lab.Below(t, lab.Cgroup(t), "kubepods")
	conn, err := bpf.Open(bpf.Options{
		Dir: filepath.Join(lab.BPFFS(t), "sluice"), Cgroup: cgroup, NetNS: kerneltest.Namespace(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // the maps go with the bpffs
	packets := &countingPackets{}
	p := New(conn, Options{Packets: packets})
	change := planetest.Compile(planetest.EveryShape(), route.Options{ListLocal: true})
	apply(t, p, change)
	if err := os.Remove(cgroup); err != nil {
		t.Fatal(err)
	}
	before := packets.applied
	if err := p.Refresh(t.Context()); err != nil { // the loop writes nothing after that
		t.Fatalf("nothing is written any more: %v", err)
	}
	if err := p.Plan(change).Apply(t.Context()); err == nil {
		t.Error("no error, although the programs cannot be attached")
	}
	if packets.applied != before+1 {
		t.Error("no rules are written")
	}
	if err := os.Mkdir(cgroup, 0o755); err != nil { //nolint:gosec // as other cgroups
		t.Fatal(err)
	}
	apply(t, p, change)
	if state, err := conn.Read(t.Context()); err != nil || state[bpf.Key{Table: bpf.Programs}] != conn.Version() {
		t.Errorf("the programs are not attached again: %v", err)
	}
}
