package iptables

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/linux/iptables"
)

// inputs are passed to the programs and to the fake, one after the other. Both must accept
// or refuse each, and have the same rules afterwards.
var inputs = []string{
	"*nat\n:A - [0:0]\n:B - [0:0]\n-A A -p tcp -m comment --comment \"x y\" -j B\n-A A -j RETURN\n-I A -j ACCEPT\n" +
		"-I A 2 -p udp -j B\nCOMMIT\n",
	"*nat\n-D A -p udp -j B\n-A B -d 10.0.0.1/32 -j MARK --set-xmark 0x4000/0x4000\nCOMMIT\n",
	"*nat\n-D A -p sctp -j B\nCOMMIT\n", // no such rule
	"*nat\n:A - [0:0]\n-X B\nCOMMIT\n",  // has rules
	"*nat\n-A A -j DROP\nCOMMIT\n*filter\n:A - [0:0]\n-A A -j DROP\nCOMMIT\n",
	"*nat\n:B - [0:0]\n-X B\nCOMMIT\n",                                                // another chain jumps to it
	"*nat\n-A A -j C\nCOMMIT\n",                                                       // no such chain
	"*nat\n-A C -j A\nCOMMIT\n",                                                       // no such chain
	"*nat\n-X C\nCOMMIT\n",                                                            // no such chain
	"*nat\n:" + strings.Repeat("N", 29) + " - [0:0]\nCOMMIT\n",                        // too long
	"*nat\n:" + strings.Repeat("N", 28) + " - [0:0]\nCOMMIT\n",                        // at the limit
	"*nat\n:A - [0:0]\n-A A -j REJECT\nCOMMIT\n",                                      // not in this table
	"*filter\n:A - [0:0]\n-A A -p tcp -j DNAT --to-destination 10.0.0.1:80\nCOMMIT\n", // not in this table either
	"*nat\n:A - [0:0]\n:B - [0:0]\n-X B\nCOMMIT\n",
	"*nat\n:C - [0:0]\n-A C -j ACCEPT\nCOMMIT\n*filter\n-A NOPE -j ACCEPT\nCOMMIT\n", // only the first table is changed
	"*nat\n-I PREROUTING -j C\n-A PREROUTING -j A\nCOMMIT\n*filter\n:C - [0:0]\n-A C -j REJECT\n-I FORWARD -j C\nCOMMIT\n",
	"*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n", // keeps its rules
	"*nat\n-D PREROUTING 1\n-F A\n-A A -j ACCEPT\nCOMMIT\n",
	"*nat\n-I A 9 -j ACCEPT\nCOMMIT\n", // index too large
	"*nat\n:C - [0:0]\n-X C\nCOMMIT\n*filter\n-F FORWARD\n-F C\n-X C\nCOMMIT\n",
	"*nat\n-X OUTPUT\nCOMMIT\n", // built in
	"*nat\n-N A\nCOMMIT\n",      // exists
	"*nat\n:D - [0:0]\n",        // no COMMIT
	"*nonsense\nCOMMIT\n",
}

// The fake accepts and refuses the same input as the programs, and has the same rules afterwards.
func TestTheFakeBehavesLikeThePrograms(t *testing.T) {
	for _, variant := range variants() {
		t.Run(string(variant), func(t *testing.T) {
			t.Parallel() // most of the time is waiting
			kernel, _ := realKernel(t, variant)
			fake := newFake()
			for _, family := range []iptables.Family{iptables.IPv4, iptables.IPv6} {
				for _, input := range inputs {
					if family == iptables.IPv6 {
						input = strings.NewReplacer("10.0.0.1:80", "[fd00::1]:80", "10.0.0.1/32", "fd00::1/128").Replace(input)
					}
					realErr := kernel.Restore(t.Context(), family, []byte(input))
					fakeErr := fake.Restore(t.Context(), family, []byte(input))
					if (realErr == nil) != (fakeErr == nil) {
						t.Errorf("%q:\nprograms: %v\nfake: %v", input, realErr, fakeErr)
					}
					for _, name := range []string{"nat", "filter"} {
						table := iptables.Table{Family: family, Name: name}
						got, err := fake.Read(t.Context(), table)
						want, err2 := kernel.Read(t.Context(), table)
						if err := errors.Join(err, err2); err != nil {
							t.Fatal(err)
						}
						if !same(got, want) {
							t.Fatalf("after %q: %s of the fake has\n%v\nwant\n%v", input, name, got, want)
						}
					}
				}
			}
		})
	}
}

// same reports whether chains are equal. It ignores built-in chains without rules, which may not exist yet.
func same(a, b iptables.Chains) bool {
	used := func(all iptables.Chains) iptables.Chains {
		all = maps.Clone(all)
		maps.DeleteFunc(all, func(_ string, c iptables.Chain) bool { return c.Policy == "ACCEPT" && len(c.Rules) == 0 })
		return all
	}
	return maps.EqualFunc(used(a), used(b), func(x, y iptables.Chain) bool {
		return x.Policy == y.Policy && slices.Equal(x.Rules, y.Rules)
	})
}
