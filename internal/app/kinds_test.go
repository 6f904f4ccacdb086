package app

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/takeover"
)

// base is a plane that other planes may use.
func base() plane.Kind {
	return plane.Kind{
		Mode:   "base",
		Probe:  func(context.Context, int) (plane.Support, error) { return plane.Support{IPv4: true}, nil },
		Remove: func(context.Context, plane.Setup) ([]string, error) { return []string{"base"}, nil },
		Cleanup: func(context.Context, plane.Setup) ([]string, error) {
			return []string{"kept: a parameter"}, errors.New("cannot clean up")
		},
	}
}

// upper is a plane that uses another: it takes its Kind, and adds its own part.
func upper(lower plane.Kind) plane.Kind {
	k := lower
	k.Mode, k.On = "upper", lower.Mode
	k.Remove = func(context.Context, plane.Setup) ([]string, error) { return []string{"upper"}, nil }
	return k
}

// Rules of a plane that the current one uses are not leftovers; rules of all other planes are.
func TestLeftoversOfOtherPlanes(t *testing.T) {
	other := base()
	other.Mode = "other"
	taken := plane.Kind{Mode: "taken"} // its rules have kube-proxy's names
	o := options(t)
	o.Kinds = []plane.Kind{base(), upper(base()), other, taken}
	for mode, want := range map[string][]string{
		"base": {"upper", "other"}, "upper": {"other"}, "other": {"base", "upper"}, "taken": {"base", "upper", "other"},
	} {
		c := *o.Config
		c.Mode = mode
		o.Config = &c
		var got []string
		for _, l := range leftovers(o) {
			got = append(got, l.Mode)
		}
		if !slices.Equal(got, want) {
			t.Errorf("mode %s removes the leftovers of %v, want %v", mode, got, want)
		}
	}
}

// The result of a Cleanup that several planes share is returned once.
func TestPlanesMayShareACleanup(t *testing.T) {
	o := options(t)
	o.Kinds = []plane.Kind{base(), upper(base()), {Mode: "without"}}
	lines, err := cleanHost(t.Context(), o)
	if !slices.Equal(lines, []string{"kept: a parameter"}) || err == nil || err.Error() != "cannot clean up" {
		t.Errorf("got %q, %v; want each once", lines, err)
	}
}

// Package takeover knows the mechanisms of the planes.
func TestMechanismsAreKnown(t *testing.T) {
	for _, variant := range []string{"iptables-legacy", "iptables-nft"} {
		for _, m := range mechanisms([]string{variant}) {
			if !slices.Contains(takeover.Mechanisms(), m) {
				t.Errorf("the take-over does not know %s", m)
			}
		}
	}
}
