package iptables

import (
	"context"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
)

// unreadableKernel is a kernel whose legacy tables cannot be decoded.
type unreadableKernel struct{ ruleReader }

func (p unreadableKernel) HasChain(ctx context.Context, id TableID, chain string) (bool, error) {
	if id.Variant == Legacy {
		return false, errUnreadable
	}
	return p.ruleReader.HasChain(ctx, id, chain)
}

func (p unreadableKernel) Outlines(context.Context, func(chain string) bool) ([]Outline, error) {
	return nil, errUnreadable
}

// If the tables of the kernel cannot be decoded, the variant in use is detected by the
// output of the programs.
func TestDetectByPrograms(t *testing.T) {
	for _, tt := range []struct {
		command string
		want    Variant
		reason  string
	}{
		{"ip6tables-legacy -t mangle -N KUBE-KUBELET-CANARY", Legacy, "KUBE-KUBELET-CANARY is in mangle of legacy"},
		{"iptables-legacy -A INPUT -j ACCEPT", Legacy, "nft has 0 rules and legacy 1"},
	} {
		netns, lock := kerneltest.Namespace(t), t.TempDir()+"/lock"
		runIn(t, netns, lock, strings.Fields(tt.command)...)
		o := Options{NetNS: netns, Lock: lock, Path: onlyPrograms(t, NFT, Legacy)}
		o.fill()
		installed, err := o.installed(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		d := detector{&o, unreadableKernel{NewKernel(Options{NetNS: netns, Lock: lock})}, installed}
		got, reason, err := d.detect(t.Context())
		if err != nil || got != tt.want || reason != tt.reason {
			t.Errorf("after %s: %s, %q, %v, want %s, %q", tt.command, got, reason, err, tt.want, tt.reason)
		}
	}
}
