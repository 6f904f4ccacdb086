package nftables

import (
	"context"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

func TestEveryShapeOnTheKernel(t *testing.T) {
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

// roundTrip writes a change, and verifies that neither the same plane nor a new one finds anything to write.
func roundTrip(t *testing.T, kernel Kernel, change route.Change) {
	t.Helper()
	ctx := context.Background()
	p := load(t, kernel, change)
	if plan := p.Plan(route.Change{Table: change.Table}); plan.Steps() != 0 {
		t.Errorf("%d steps without a change:\n%.3000s", plan.Steps(), plan)
	}
	if err := p.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	if plan := p.Plan(change); plan.Steps() != 0 {
		t.Errorf("%d steps after a Refresh, want none:\n%.3000s", plan.Steps(), plan)
	}
	checkSettled(t, kernel, change.Table)
}

// S-279: Remove deletes no foreign tables.
func TestRemoveDeletesOurTablesOnly(t *testing.T) {
	conn, netns := realKernel(t)
	foreign := "table ip sluice2 {\n\tset s {\n\t\ttype ipv4_addr\n\t\telements = { 192.0.2.1 }\n\t}\n}\n" +
		"table inet sluice {\n\tchain c {\n\t\ttype nat hook prerouting priority dstnat; policy accept;\n\t}\n}\n"
	if out, err := runNft(t, netns, foreign, "-f", "-"); err != nil {
		t.Fatal(err, out)
	}
	ctx := context.Background()
	for range 2 { // with our tables, and without
		p := load(t, conn, planetest.Compile(planetest.EveryShape(), route.Options{}))
		removed, err := p.Remove(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if len(removed) != 2 || !strings.HasPrefix(removed[0], "table ip sluice with ") ||
			!strings.HasPrefix(removed[1], "table ip6 sluice with ") {
			t.Errorf("removed %q, want both tables", removed)
		}
		if removed, err = New(conn, Options{}).Remove(ctx); err != nil || len(removed) > 0 {
			t.Fatalf("a second Remove returned %v, %q", err, removed)
		}
	}
	if out, err := runNft(t, netns, "", "list", "ruleset"); err != nil || out != foreign {
		t.Errorf("left: %v\n%s\nwant\n%s", err, out, foreign)
	}
}
