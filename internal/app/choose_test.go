package app

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/plane"
)

func TestChoose(t *testing.T) {
	modes := []string{"nftables", "ipvs", "iptables"}
	for _, tt := range []struct {
		what  string
		fails map[string]string
		want  Choice
	}{
		{"all work", nil, Choice{"nftables", "the default, and this kernel supports it"}},
		{
			"the first does not work",
			map[string]string{"nftables": "no numgen\nno fib"},
			Choice{"ipvs", "the best this kernel can do; not nftables: no numgen; no fib"},
		},
		{
			"only the last works",
			map[string]string{"nftables": "no nf_tables", "ipvs": "no ip_vs"},
			Choice{"iptables", "the best this kernel can do; not nftables: no nf_tables; not ipvs: no ip_vs"},
		},
		{
			"none works",
			map[string]string{"nftables": "a", "ipvs": "b", "iptables": "c"},
			Choice{"nftables", "the default, although no mode works here; not nftables: a; not ipvs: b; not iptables: c"},
		},
	} {
		if got := Choose(t.Context(), failing(tt.fails, modes...), 0); got != tt.want {
			t.Errorf("%s: chose %+v, want %+v", tt.what, got, tt.want)
		}
	}
}

// failing returns kinds whose probes fail with the given reasons.
func failing(why map[string]string, modes ...string) []plane.Kind {
	var kinds []plane.Kind
	for _, mode := range modes {
		kinds = append(kinds, plane.Kind{Mode: mode, Probe: func(context.Context, int) (plane.Support, error) {
			if text, ok := why[mode]; ok {
				return plane.Support{}, errors.New(text)
			}
			return plane.Support{IPv4: true}, nil
		}})
	}
	return kinds
}

// The documentation of the commands has the reason that this build returns.
func TestTheDocumentationHasTheReason(t *testing.T) {
	page, err := os.ReadFile("../../docs/commands.md")
	if err != nil {
		t.Fatal(err)
	}
	c := Choose(t.Context(), failing(nil, Modes(Kinds())...), 0)
	if want := c.Mode + " (" + c.Reason + ")\n"; !strings.Contains(string(page), want) {
		t.Errorf("docs/commands.md lacks %q, which `sluice status` prints", want)
	}
}
