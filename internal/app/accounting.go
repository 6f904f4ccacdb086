package app

import (
	"context"
	"log/slog"

	kernel "github.com/sluice-proxy/sluice/internal/kernel/iptables"
	"github.com/sluice-proxy/sluice/internal/kernel/nfacct"
	"github.com/sluice-proxy/sluice/internal/metrics"
	"github.com/sluice-proxy/sluice/internal/plane/iptables"
	"github.com/sluice-proxy/sluice/internal/route"
)

// whyNot is at what level it is logged that something does without what it can
// do without: -v=2.
const whyNot = slog.Level(-2)

// accounting returns the way to what rules count with; nil: the kernel or the
// programs do not know how, and rules do not count.
func accounting(ctx context.Context, p parts, tools *kernel.Tools) *nfacct.Objects {
	objects := nfacct.New(nfacct.Options{NetNS: p.netns})
	err := objects.Available(ctx)
	if err == nil {
		err = countable(ctx, p.families, tools)
	}
	if err != nil {
		p.log.Log(ctx, whyNot, "Packets are not counted by rules", "why", err)
		return nil
	}
	return objects
}

// asTheyAre makes no objects: it is for who only looks.
type asTheyAre struct{}

func (asTheyAre) Ensure(context.Context, ...string) error { return nil }

// countable tries whether the programs and the kernel know the match, which is
// another part of the kernel than the objects are.
func countable(ctx context.Context, families []route.Family, tools *kernel.Tools) error {
	input := []byte("*filter\n-A FORWARD -m nfacct --nfacct-name " + iptables.InvalidDropped + "\nCOMMIT\n")
	for _, f := range families {
		if err := tools.Test(ctx, kernelFamily(f), input); err != nil {
			return err
		}
	}
	return nil
}

func kernelFamily(f route.Family) kernel.Family {
	if f == route.IPv4 {
		return kernel.IPv4
	}
	return kernel.IPv6
}

// readCounts says where metrics read what rules counted; nil: nowhere.
func readCounts(objects *nfacct.Objects) func(*metrics.Readings) {
	if objects == nil {
		return nil
	}
	return func(r *metrics.Readings) {
		r.InvalidDropped = counted(objects, iptables.InvalidDropped)
		r.LoopbackNodePorts = counted(objects, iptables.LoopbackNodePorts)
	}
}

// counted reads how many packets rules counted with an object.
func counted(objects *nfacct.Objects, name string) func() (uint64, bool) {
	return func() (uint64, bool) {
		c, err := objects.Read(context.Background(), name) // answered at once
		return c.Packets, err == nil
	}
}
