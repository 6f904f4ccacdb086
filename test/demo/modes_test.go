//go:build linux

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/kernel/iptables"
	"github.com/sluice-proxy/sluice/internal/kernel/probe"
)

const saved = `*nat
:KUBE-SVC-ONE - [0:0]
-A KUBE-SVC-ONE -m comment --comment "default/web:http -> 10.180.0.1:8080" -j KUBE-SEP-ONE
-A KUBE-SERVICES -d 10.96.0.100/32 -p tcp -m comment --comment "default/blog cluster IP" -m tcp --dport 80 -j KUBE-SVC-TWO
-A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-ONE
COMMIT
`

func TestClusterChain(t *testing.T) {
	rules := linesWith(saved, "-A ")
	if len(rules) != 3 || !slices.IsSorted(rules) {
		t.Errorf("rules %q", rules)
	}
	for vip, want := range map[string]string{"10.96.0.10": "KUBE-SVC-ONE", "10.96.0.100": "KUBE-SVC-TWO", "10.96.0.1": "", "10.96.0.": ""} {
		if got := clusterChain(rules, vip); got != want {
			t.Errorf("%s: %q, want %q", vip, got, want)
		}
	}
}

// Rows are as wide as allowed, begin with an option, and lose nothing.
func TestFold(t *testing.T) {
	for width, want := range map[int][]string{
		9:  {"-A b -c d", "-e f", "--long g"},
		14: {"-A b -c d -e f", "--long g"},
		99: {"-A b -c d -e f --long g"},
		1:  {"-A b", "-c d", "-e f", "--long g"},
	} {
		if got := fold("-A b -c d -e f --long g", width); !slices.Equal(got, want) {
			t.Errorf("%d wide: %q, want %q", width, got, want)
		}
	}
	for _, rule := range linesWith(saved, "-A ") {
		if got := strings.Join(fold(rule, 60), " "); got != rule {
			t.Errorf("%s became %s", rule, got)
		}
	}
}

// What a machine lacks is told in one line.
func TestLacks(t *testing.T) {
	works := probe.Support{IPv4: true, IPv6: true}
	for _, c := range []struct {
		found probe.Support
		err   error
		want  string
	}{
		{works, nil, ""},
		{probe.Support{}, fmt.Errorf("iptables is %w: looked for", iptables.ErrMissing), "there is no iptables; install the package iptables"},
		{probe.Support{}, errors.New("one\ntwo"), "one"},
		{probe.Support{IPv4: true, Notes: []string{"IPv6 is off"}}, nil, "IPv6 is off; there is no IPv6"},
	} {
		got := ""
		if err := lacks(c.found, c.err); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%+v, %v: %q, want %q", c.found, c.err, got, c.want)
		}
	}
}

func TestFind(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // as of a user who is no administrator
	if _, err := find("no-such-program"); err == nil {
		t.Error("found what is not there")
	}
	path, err := find("ip6tables-nft-save")
	if err != nil || !strings.HasSuffix(path, "sbin/ip6tables-nft-save") {
		t.Errorf("found %q: %v", path, err)
	}
}
