package nftables

import (
	"context"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/kernel/nft"
	"github.com/sluice-proxy/sluice/internal/plane/planetest"
	"github.com/sluice-proxy/sluice/internal/route"
)

func TestEveryShapeIsKeptByTheKernelAndListed(t *testing.T) {
	for name, opt := range planetest.Detectors() {
		t.Run(name, func(t *testing.T) {
			conn, netns := realKernel(t)
			roundTrip(t, conn, planetest.Compile(planetest.EveryShape(), opt))
			out, err := runNft(t, netns, "", "list", "ruleset")
			if err != nil || !strings.Contains(out, "ns/svc-7:udp") {
				t.Errorf("nft list ruleset: %v\n%.2000s", err, out)
			}
		})
	}
}

func TestEveryShapeOnTheFake(t *testing.T) {
	for name, opt := range planetest.Detectors() {
		t.Run(name, func(t *testing.T) { roundTrip(t, nft.NewFake(), planetest.Compile(planetest.EveryShape(), opt)) })
	}
}

// roundTrip applies everything, and wants nothing to be left to do: neither for
// the plane that did it nor for one that finds it.
func roundTrip(t *testing.T, kernel Kernel, change route.Change) {
	t.Helper()
	ctx := context.Background()
	p := load(t, kernel, change)
	if plan := p.Plan(route.Change{Table: change.Table}); plan.Steps() != 0 {
		t.Errorf("%d steps for a change of nothing:\n%.3000s", plan.Steps(), plan)
	}
	if err := p.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	if plan := p.Plan(change); plan.Steps() != 0 {
		t.Errorf("%d steps after a look at the kernel, want none:\n%.3000s", plan.Steps(), plan)
	}
	settled(t, kernel, change.Table)
}

// S-279: what we do to our tables concerns no other.
func TestRemoveTakesOurTablesOnly(t *testing.T) {
	conn, netns := realKernel(t)
	foreign := "table ip sluice2 {\n\tset s {\n\t\ttype ipv4_addr\n\t\telements = { 192.0.2.1 }\n\t}\n}\n" +
		"table inet sluice {\n\tchain c {\n\t\ttype nat hook prerouting priority dstnat; policy accept;\n\t}\n}\n"
	if out, err := runNft(t, netns, foreign, "-f", "-"); err != nil {
		t.Fatal(err, out)
	}
	ctx := context.Background()
	for range 2 { // with our tables, and without
		p := load(t, conn, planetest.Compile(planetest.EveryShape(), route.Options{}))
		said, err := p.Remove(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if len(said) != 2 || !strings.HasPrefix(said[0], "table ip sluice with ") || !strings.HasPrefix(said[1], "table ip6 sluice with ") {
			t.Errorf("said %q, want that both tables were removed", said)
		}
		if said, err = New(conn, Options{}).Remove(ctx); err != nil || len(said) > 0 {
			t.Fatalf("remove what is not there: %v, %q", err, said)
		}
	}
	if out, err := runNft(t, netns, "", "list", "ruleset"); err != nil || out != foreign {
		t.Errorf("left: %v\n%s\nwant\n%s", err, out, foreign)
	}
}
