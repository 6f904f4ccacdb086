package iptables_test

import (
	"errors"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/kernel/iptables"
)

// Exists and HasChain find tables and chains, and create none.
func TestExists(t *testing.T) {
	h := newHost(t)
	for _, variant := range []iptables.Variant{iptables.Legacy, iptables.NFT} {
		for _, family := range []iptables.Family{iptables.IPv4, iptables.IPv6} {
			id := iptables.TableID{Variant: variant, Family: family, Name: "mangle"}
			program, _, _ := strings.Cut(id.String(), " ")
			exists, err := h.kernel().Exists(t.Context(), id)
			if err != nil || exists {
				t.Errorf("%s exists: %t, %v", id, exists, err)
			}
			if found, err := h.kernel().HasChain(t.Context(), id, "A"); err != nil || found {
				t.Errorf("%s has a chain: %t, %v", id, found, err)
			}
			if exists, err = h.kernel().Exists(t.Context(), id); err != nil || exists {
				t.Errorf("%s was created: %t, %v", id, exists, err)
			}
			h.run("", program, "-t", "mangle", "-N", "A")
			exists, err = h.kernel().Exists(t.Context(), id)
			found, err2 := h.kernel().HasChain(t.Context(), id, "A")
			other, err3 := h.kernel().HasChain(t.Context(), id, "B")
			if err := errors.Join(err, err2, err3); err != nil || !exists || !found || other {
				t.Errorf("%s exists: %t, has A: %t, B: %t, %v", id, exists, found, other, err)
			}
		}
	}
}

// LegacyRules counts the rules of legacy tables, without those of an empty table.
func TestLegacyRules(t *testing.T) {
	h := newHost(t)
	for i, command := range []string{
		"iptables-nft -A INPUT -j ACCEPT", "iptables-legacy -t nat -L", "iptables-legacy -t nat -A OUTPUT -j ACCEPT",
		"ip6tables-legacy -A INPUT -j ACCEPT",
	} {
		args := strings.Fields(command)
		h.run("", args[0], args[1:]...)
		if got, err := h.kernel().LegacyRules(t.Context()); err != nil || got != max(i-1, 0) {
			t.Errorf("after %s: %d, %v", command, got, err)
		}
	}
}

// Digests differ if and only if rules differ.
func TestDigest(t *testing.T) {
	h := newHost(t)
	id := iptables.TableID{Variant: iptables.Legacy, Family: iptables.IPv4, Name: "nat"}
	seed := maphash.MakeSeed()
	ours := func(chain string) bool { return strings.HasPrefix(chain, "KUBE-") }
	read := func() (iptables.Digest, iptables.Stamp) {
		d, stamp, err := h.kernel().Digest(t.Context(), id, seed, ours)
		stamps, err2 := h.kernel().Stamps(t.Context())
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		if stamps[id] != stamp || len(stamps) != 1 {
			t.Errorf("stamps %v, read with %v", stamps, stamp)
		}
		return d, stamp
	}
	change := func(lines string) { h.run("*nat\n"+lines+"COMMIT\n", "iptables-legacy-restore", "--noflush") }
	change(":KUBE-A - [0:0]\n:KUBE-B - [0:0]\n:OTHER - [0:0]\n-A KUBE-A -m statistic --mode random --probability 0.5 -j KUBE-B\n" +
		"-A KUBE-B -p tcp -m recent --name X --set -j DNAT --to-destination 10.0.0.1:80\n-A OUTPUT -j KUBE-A\n-A OTHER -j RETURN\n")
	first, firstStamp := read()
	if got := slices.Sorted(maps.Keys(first.Chains)); !slices.Equal(got, []string{"KUBE-A", "KUBE-B"}) {
		t.Errorf("digest has %v", got)
	}
	if got := slices.Collect(maps.Keys(first.Others)); !slices.Equal(got, []string{"OUTPUT"}) {
		t.Errorf("digest has others %v", got)
	}
	change("-I OTHER -j ACCEPT\n:AAA - [0:0]\n-I OUTPUT -j AAA\n") // moves all other rules
	second, secondStamp := read()
	if !maps.Equal(first.Chains, second.Chains) || firstStamp == secondStamp {
		t.Errorf("after an edit of foreign rules: %v, before %v", second, first)
	}
	if o := second.Others["OUTPUT"]; len(o) != 2 || o[0].Leads || o[1] != first.Others["OUTPUT"][0] {
		t.Errorf("OUTPUT has %v, before %v", o, first.Others["OUTPUT"])
	}
	change("-R KUBE-B 1 -p tcp -m recent --name X --set -j DNAT --to-destination 10.0.0.2:80\n")
	third, thirdStamp := read()
	if thirdStamp != secondStamp || third.Chains["KUBE-A"] != second.Chains["KUBE-A"] || third.Chains["KUBE-B"] == second.Chains["KUBE-B"] {
		t.Errorf("after a rule was replaced: %v, before %v", third, second)
	}
}
