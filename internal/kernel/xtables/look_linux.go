package xtables

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/netns"
)

// Exists reports whether a table is there. It makes none, as PROGRAM-save does
// in the legacy variant.
func (k *Kernel) Exists(ctx context.Context, id TableID) (bool, error) {
	if id.Variant == NFT {
		return k.ask(ctx, id, unix.NFT_MSG_GETTABLE, map[uint16]string{unix.NFTA_TABLE_NAME: id.Name})
	}
	there := false
	err := netns.Do(k.opts.NetNS, func() (err error) {
		there, err = protocolOf(id.Family).has(id.Name)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("look for table %s: %w", id, err)
	}
	return there, nil
}

// HasChain reports whether a table is there and has a chain. In the nft variant
// that costs the same whatever the table holds.
func (k *Kernel) HasChain(ctx context.Context, id TableID, chain string) (bool, error) {
	if id.Variant == NFT {
		return k.ask(ctx, id, unix.NFT_MSG_GETCHAIN,
			map[uint16]string{unix.NFTA_CHAIN_TABLE: id.Name, unix.NFTA_CHAIN_NAME: chain})
	}
	found := false
	err := netns.Do(k.opts.NetNS, func() error {
		p := protocolOf(id.Family)
		there, err := p.has(id.Name)
		if err != nil || !there {
			return err
		}
		t, err := p.read(ctx, id)
		found = slices.ContainsFunc(t.Chains, func(c Chain) bool { return c.Name == chain })
		return err
	})
	if err != nil {
		return false, fmt.Errorf("look for chain %s in %s: %w%s", chain, id, err, remedy(err))
	}
	return found, nil
}

// LegacyRules returns how many rules and chains the legacy tables hold that did
// not come with them, without reading them.
func (k *Kernel) LegacyRules(ctx context.Context) (int, error) {
	total := 0
	err := netns.Do(k.opts.NetNS, func() error {
		for _, p := range protocols() {
			names, err := p.tables()
			if err != nil {
				return err
			}
			for _, name := range names {
				n, err := p.rules(ctx, name)
				if err != nil {
					return fmt.Errorf("%s: %w", TableID{Legacy, p.family, name}, err)
				}
				total += n
			}
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("count legacy rules: %w%s", err, remedy(err))
	}
	return total, nil
}

// rules counts the entries of a table, less one policy for each hook and the last.
func (p protocol) rules(ctx context.Context, name string) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s, err := p.open()
	if err != nil {
		return 0, err
	}
	defer s.close()
	img, _, err := s.info(name)
	if err != nil {
		return 0, err
	}
	n := int(img.number) - 1
	for hook := range hookCount {
		if img.hooks&(1<<hook) != 0 {
			n--
		}
	}
	return n, nil
}

func protocolOf(f Family) protocol {
	all := protocols()
	if f == IPv6 {
		return all[1]
	}
	return all[0]
}

// has reports whether a table is there.
func (p protocol) has(name string) (bool, error) {
	names, err := p.tables()
	return slices.Contains(names, name), err
}

// ask asks nf_tables whether it has an object of these names.
func (k *Kernel) ask(ctx context.Context, id TableID, number int, names map[uint16]string) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	s, ok, err := openNFT(k.opts.NetNS)
	if err != nil || !ok {
		return false, err
	}
	defer func() { _ = s.Close() }() // nothing was written
	ae := netlink.NewAttributeEncoder()
	for kind, name := range names {
		ae.String(kind, name)
	}
	attrs, err := ae.Encode()
	if err != nil {
		return false, fmt.Errorf("encode message: %w", err)
	}
	_, err = s.Execute(netlink.Message{Header: header(number, 0), Data: append(nfgen(nftFamily(id.Family)), attrs...)})
	switch {
	case errors.Is(err, unix.ENOENT), absent(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look into %s: %w%s", id, err, remedy(err))
	}
	return true, nil
}
