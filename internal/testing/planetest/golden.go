package planetest

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Golden returns a function that compares a text with testdata/name. It defines the flag
// -update, so a package calls it once.
func Golden() func(t testing.TB, name, got string) {
	update := flag.Bool("update", false, "write the golden files")
	return func(t testing.TB, name, got string) {
		t.Helper()
		file := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s, -want +got (-update rewrites it):\n%s", file, diff)
		}
	}
}

// Load makes a plane read the kernel and write a change.
func Load(t testing.TB, p plane.Plane, change route.Change) {
	t.Helper()
	if err := p.Refresh(context.Background()); err != nil {
		t.Fatal(err)
	}
	plan := p.Plan(change)
	if err := plan.Apply(context.Background()); err != nil {
		t.Fatalf("%v\n%.2000s", err, plan)
	}
}

// Settled verifies that a plane has nothing to write after a Refresh.
func Settled(t testing.TB, p plane.Plane, table *route.Table) {
	t.Helper()
	if err := p.Refresh(context.Background()); err != nil {
		t.Fatal(err)
	}
	if plan := p.Plan(route.Change{Table: table}); plan.Steps() != 0 {
		t.Fatalf("%d steps left to do, want none:\n%.3000s", plan.Steps(), plan)
	}
}
