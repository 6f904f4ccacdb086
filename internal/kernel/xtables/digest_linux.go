package xtables

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

// Stamp is what the kernel says of a legacy table without showing it: its size
// and number of entries, and where chains begin. It differs when rules were
// added or removed, but not when one took the place of another of its size. The
// zero value is that of a table that is not there.
type Stamp struct {
	image struct {
		hooks     uint32
		entry     [hookCount]uint32
		underflow [hookCount]uint32
		number    uint32
	}
	size uint32
}

func stampOf(img image, size uint32) Stamp {
	s := Stamp{size: size}
	s.image.hooks, s.image.entry, s.image.underflow, s.image.number = img.hooks, img.entry, img.underflow, img.number
	return s
}

// Digest is what a legacy table says, in numbers that are good for comparing
// digests of the same seed.
type Digest struct {
	Stamp  Stamp
	Chains map[string]uint64  // the chains that were asked for
	Others map[string][]Entry // other chains, as far as they lead to one of these
}

// Entry is a rule of another chain.
type Entry struct {
	Sum   uint64
	Leads bool // to a chain that was asked for
	Ends  bool // the way of every packet that comes to it
}

// Stamps returns the stamps of the legacy tables that exist. It costs the same
// whatever they hold.
func (k *Kernel) Stamps(ctx context.Context) (map[TableID]Stamp, error) {
	stamps := map[TableID]Stamp{}
	err := netns.Do(k.opts.NetNS, func() error {
		for _, p := range protocols() {
			if err := p.stamps(ctx, stamps); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look at legacy tables: %w%s", err, remedy(err))
	}
	return stamps, nil
}

func (p protocol) stamps(ctx context.Context, stamps map[TableID]Stamp) error {
	names, err := p.tables()
	if err != nil || len(names) == 0 {
		return err
	}
	s, err := p.open()
	if err != nil {
		return err
	}
	defer s.close()
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		img, size, err := s.info(name)
		if errors.Is(err, unix.ENOENT) { // gone just now
			continue
		}
		if err != nil {
			return err
		}
		stamps[TableID{Legacy, p.family, name}] = stampOf(img, size)
	}
	return nil
}

// Digest reads a legacy table, which must exist. Of chains that are not ours it
// keeps the order of their rules, if any of these leads to one of ours.
func (k *Kernel) Digest(ctx context.Context, id TableID, seed maphash.Seed, ours func(chain string) bool) (Digest, error) {
	var d Digest
	err := netns.Do(k.opts.NetNS, func() error {
		s, err := protocolOf(id.Family).open()
		if err != nil {
			return err
		}
		defer s.close()
		b, err := s.blob(ctx, id.Name)
		if err != nil {
			return err
		}
		d = b.digest(seed, ours)
		return nil
	})
	if err != nil {
		return Digest{}, fmt.Errorf("look into %s: %w%s", id, err, remedy(err))
	}
	return d, nil
}

func (b *blob) digest(seed maphash.Seed, ours func(string) bool) Digest {
	d := Digest{
		Stamp:  stampOf(b.image, uint32(len(b.data))),
		Chains: map[string]uint64{}, Others: map[string][]Entry{},
	}
	mine := make([]bool, len(b.segments))
	for i, s := range b.segments {
		mine[i] = ours(s.name)
	}
	var h maphash.Hash
	h.SetSeed(seed)
	for i, s := range b.segments {
		rules := b.entries[s.rules:s.tail]
		if mine[i] {
			h.Reset()
			for _, e := range rules {
				b.hash(&h, e)
			}
			d.Chains[s.name] = h.Sum64()
			continue
		}
		leads := false
		for _, e := range rules {
			leads = leads || e.leads != continues && mine[e.leads]
		}
		if !leads {
			continue
		}
		entries := make([]Entry, 0, len(rules))
		for _, e := range rules {
			h.Reset()
			b.hash(&h, e)
			entries = append(entries, Entry{Sum: h.Sum64(), Leads: e.leads != continues && mine[e.leads], Ends: b.ends(e)})
		}
		d.Others[s.name] = entries
	}
	return d
}

// ends reports whether a rule asks nothing of a packet, and decides on it.
func (b *blob) ends(e entry) bool {
	conditions := b.data[e.at : e.at+b.target] // addresses, interfaces, protocol
	return e.part == e.at+b.head && (e.name != "" || e.verdict < 0) &&
		!slices.ContainsFunc(conditions, func(c byte) bool { return c != 0 })
}

// hash adds what a rule says, without its counters. Where it leads to is a
// matter of names: offsets move.
func (b *blob) hash(h *maphash.Hash, e entry) {
	_, _ = h.Write(b.data[e.at : e.at+b.target]) // never fails
	_, _ = h.Write(b.data[e.at+b.head : e.part])
	switch {
	case e.leads != continues:
		_, _ = h.WriteString(b.segments[e.leads].name)
	case e.name != "":
		_, _ = h.Write(b.data[e.part:e.end])
	case e.verdict < 0:
		var verdict [4]byte
		binary.NativeEndian.PutUint32(verdict[:], uint32(e.verdict))
		_, _ = h.Write(verdict[:])
	}
	_ = h.WriteByte(0)
}
