package iptables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/netns"
)

// Digest has hashes of the rules of a legacy table, without their counters. Digests of
// the same seed can be compared.
type Digest struct {
	Chains map[string]uint64  // of the selected chains
	Others map[string][]Entry // of other chains that lead to one of these
}

// Entry is a rule of another chain.
type Entry struct {
	Sum   uint64
	Leads bool // to a selected chain
	Ends  bool // it decides about every packet that reaches it
}

// Stamps returns the stamps of the legacy tables that exist. The cost does not
// depend on what they hold.
func (k *Kernel) Stamps(ctx context.Context) (map[TableID]Stamp, error) {
	stamps := map[TableID]Stamp{}
	err := k.legacy(ctx, func(id TableID, p protocol) error {
		s, err := p.stamp(id.Name)
		if errors.Is(err, unix.ENOENT) { // gone just now
			return nil
		}
		stamps[id] = s
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read sizes of legacy tables: %w%s", err, remedy(err))
	}
	return stamps, nil
}

// read reads a legacy table, which must exist.
func (k *Kernel) read(ctx context.Context, id TableID) (t *legacyTable, err error) {
	err = netns.Do(k.opts.NetNS, func() (err error) {
		t, err = protocolOf(id.Family).read(ctx, id.Name)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w%s", id, err, remedy(err))
	}
	return t, nil
}

// digest hashes the chains of the proxy. Of other chains that jump to one of them it keeps
// the order of rules.
func (t *legacyTable) digest(seed maphash.Seed, ours func(string) bool) Digest {
	d := Digest{Chains: map[string]uint64{}, Others: map[string][]Entry{}}
	mine := make([]bool, len(t.chains))
	for i, c := range t.chains {
		mine[i] = ours(c.name)
	}
	var h maphash.Hash
	h.SetSeed(seed)
	for i, c := range t.chains {
		h.Reset()
		if mine[i] {
			for _, r := range c.rules {
				t.hash(&h, r)
			}
			d.Chains[c.name] = h.Sum64()
			continue
		}
		var entries []Entry
		for _, r := range c.rules {
			h.Reset()
			t.hash(&h, r)
			entries = append(entries, Entry{Sum: h.Sum64(), Leads: r.leads != none && mine[r.leads], Ends: t.ends(r)})
		}
		if slices.ContainsFunc(entries, func(e Entry) bool { return e.Leads }) {
			d.Others[c.name] = entries
		}
	}
	return d
}

// hash adds a rule without its counters. A chain it leads to is hashed by its name: the
// offset changes with rules before it.
func (t *legacyTable) hash(h *maphash.Hash, r legacyRule) {
	_, _ = h.Write(t.data[r.at : r.at+t.target]) // never fails
	_, _ = h.Write(t.data[r.at+t.head : r.part])
	switch {
	case r.leads != none:
		_, _ = h.WriteString(t.chains[r.leads].name)
	case r.target != "":
		_, _ = h.Write(t.data[r.part:r.end])
	case r.verdict < 0:
		_, _ = h.Write(binary.NativeEndian.AppendUint32(nil, uint32(r.verdict)))
	}
	_ = h.WriteByte(0)
}
