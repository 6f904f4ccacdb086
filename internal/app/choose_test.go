package app

import (
	"errors"
	"os"
	"strings"
	"testing"
)

func TestChoose(t *testing.T) {
	three := []kind{{mode: "nftables"}, {mode: "ipvs"}, {mode: "iptables"}}
	for _, tt := range []struct {
		what  string
		fails map[string]string
		want  Choice
	}{
		{"all work", nil, Choice{"nftables", "the default, and this kernel can do it"}},
		{
			"the first does not",
			map[string]string{"nftables": "no numgen\nno fib"},
			Choice{"ipvs", "the best this kernel can do; not nftables: no numgen; no fib"},
		},
		{
			"only the last does",
			map[string]string{"nftables": "no nf_tables", "ipvs": "no ip_vs"},
			Choice{"iptables", "the best this kernel can do; not nftables: no nf_tables; not ipvs: no ip_vs"},
		},
		{
			"none does",
			map[string]string{"nftables": "a", "ipvs": "b", "iptables": "c"},
			Choice{"nftables", "the default, but nothing works here; not nftables: a; not ipvs: b; not iptables: c"},
		},
	} {
		got := choose(three, func(k kind) error {
			if why, ok := tt.fails[k.mode]; ok {
				return errors.New(why)
			}
			return nil
		})
		if got != tt.want {
			t.Errorf("%s: chose %+v, want %+v", tt.what, got, tt.want)
		}
	}
}

// The page about the commands shows the words of this build.
func TestThePageShowsAReasonThatIsGiven(t *testing.T) {
	page, err := os.ReadFile("../../docs/commands.md")
	if err != nil {
		t.Fatal(err)
	}
	c := choose(kinds(), func(kind) error { return nil })
	if want := c.Mode + " (" + c.Reason + ")\n"; !strings.Contains(string(page), want) {
		t.Errorf("docs/commands.md lacks %q, which is what `sluice status` says", want)
	}
}
