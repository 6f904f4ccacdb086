package bugreport

import (
	"bytes"
	"context"
	"fmt"

	"github.com/sluice-proxy/sluice/internal/kubechain"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
)

// Rules lists the chains of Sluice, and those with kube-proxy's names, with the targets of their rules, and no others.
func Rules(ctx context.Context, netns int) ([]byte, error) {
	var b bytes.Buffer
	conn, err := nft.Open(nft.Options{NetNS: netns})
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // it was only read from
	var own []nft.Table
	for _, name := range []string{"sluice", "sluice-localnet", "kube-proxy"} {
		own = append(own, nft.Table{Family: nft.IP4, Name: name}, nft.Table{Family: nft.IP6, Name: name})
	}
	tables, err := conn.Outline(ctx, own, nft.AllRules)
	if err != nil {
		return nil, err
	}
	for _, t := range tables {
		fmt.Fprintf(&b, "table %s\n", t.Table)
		for _, c := range t.Chains {
			fmt.Fprintf(&b, "  chain %s\n", c.Name)
			for _, r := range c.Rules {
				fmt.Fprintf(&b, "    %s\n", r.Target)
			}
		}
	}
	chains, err := iptables.NewKernel(iptables.Options{NetNS: netns}).Outlines(ctx, kubechain.Proxy)
	if err != nil {
		return b.Bytes(), err
	}
	for _, t := range chains {
		for _, c := range t.Chains {
			if !kubechain.Proxy(c.Name) || b.Len() > MaxFile {
				continue
			}
			fmt.Fprintf(&b, "%s chain %s\n", t, c.Name)
			for _, r := range c.Rules {
				fmt.Fprintf(&b, "    %s\n", r.Target)
			}
		}
	}
	return b.Bytes(), nil
}
