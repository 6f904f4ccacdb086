package iptables

import (
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// The variant with a hint of kubelet is used, else the one with more rules.
func TestDetect(t *testing.T) {
	for _, tt := range []struct {
		commands []string
		want     Variant
		reason   string
	}{
		{[]string{"ip6tables-legacy -t mangle -N KUBE-KUBELET-CANARY"}, Legacy, "KUBE-KUBELET-CANARY is in mangle of legacy"},
		{
			[]string{"iptables-legacy -t mangle -N KUBE-IPTABLES-HINT", "ip6tables-nft -t mangle -N KUBE-KUBELET-CANARY"},
			NFT, "KUBE-KUBELET-CANARY is in mangle of nft",
		},
		{[]string{"iptables-legacy -t nat -N EMPTY"}, NFT, "there are no rules of legacy"},
		{
			[]string{
				"iptables-legacy -A INPUT -j ACCEPT", "iptables-legacy -N ERROR",
				"ip6tables-legacy -t nat -A OUTPUT -j LOG --log-prefix ERROR",
			},
			Legacy, "nft has 0 rules and legacy 2",
		},
		{
			[]string{"iptables-legacy -A INPUT -j ACCEPT", "iptables-nft -A INPUT -j ACCEPT"},
			NFT,
			"nft has 1 rules and legacy 1",
		},
	} {
		netns, lock := kerneltest.Namespace(t), t.TempDir()+"/lock"
		for _, command := range tt.commands {
			runIn(t, netns, lock, strings.Fields(command)...)
		}
		got, reason, err := NewKernel(Options{NetNS: netns, Lock: lock}).detect(t.Context())
		if err != nil || got != tt.want || reason != tt.reason {
			t.Errorf("after %s: %s, %q, %v, want %s, %q", tt.commands, got, reason, err, tt.want, tt.reason)
		}
	}
}
