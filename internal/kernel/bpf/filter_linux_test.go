package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// filtered returns the words of the filter that are not zero.
func (n *node) filtered() map[uint32]uint64 {
	n.t.Helper()
	words, err := n.conn.filter.read()
	if err != nil {
		n.t.Fatal(err)
	}
	all := map[uint32]uint64{}
	for i, word := range words {
		if word != 0 {
			all[uint32(i)] = word
		}
	}
	return all
}

// needed returns those words that the addresses in the tables need.
func (n *node) needed() map[uint32]uint64 {
	n.t.Helper()
	state, err := n.conn.Read(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	all := map[uint32]uint64{}
	for k := range state {
		if k.Table == Frontends || k.Table == NodeAddrs {
			bit := filterBit(k.Data)
			all[bit/64] |= 1 << (bit % 64)
		}
	}
	return all
}

// sharing returns two IPv4 addresses with the same bit.
func sharing() (a, b netip.Addr) {
	seen := map[uint32]netip.Addr{}
	for a = netip.MustParseAddr("10.0.0.1"); ; a = a.Next() {
		bit := filterBit(string(address(a)))
		if b, is := seen[bit]; is {
			return a, b
		}
		seen[bit] = a
	}
}

// The filter has the bits of all addresses in the tables, and no others, also after a restart.
func TestFilter(t *testing.T) {
	n := newNode(t)
	n.write()
	var entries []Entry
	a, b := sharing()
	for _, a := range []netip.Addr{netip.IPv6Unspecified(), netip.MustParseAddr("fd00::1"), a, b} {
		entries = append(entries, NodeAddr(a))
		for port := range uint16(3) {
			entries = append(entries, Frontend{At: netip.AddrPortFrom(a, 80+port), Protocol: unix.IPPROTO_UDP}.Entry())
		}
	}
	there := map[Key]bool{}
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 200 {
		if i%50 == 49 {
			n.conn = n.reopen(func(*Options) {})
		}
		e := entries[random.IntN(len(entries))]
		if err := n.conn.Write(t.Context(), []Step{{Entry: e, Remove: there[e.Key]}}); err != nil {
			t.Fatal(err)
		}
		there[e.Key] = !there[e.Key]
		if is, want := n.filtered(), n.needed(); !maps.Equal(is, want) {
			t.Fatalf("step %d: %v, want %v", i, is, want)
		}
	}
}

// A restart corrects bits: it adds those that another version of Sluice has not written, and removes others unless programs of another version
// may need them.
func TestFilterIsCorrected(t *testing.T) {
	n := newNode(t)
	list := service(dns4, unix.IPPROTO_UDP, OfNode, "127.0.0.1:53")
	n.write(list...)
	spoil := func() {
		t.Helper()
		for i := range n.filtered() {
			if err := n.conn.filter.m.Put(i, uint64(0)); err != nil {
				t.Fatal(err)
			}
		}
		if err := n.conn.filter.m.Put(uint32(7), uint64(7)); err != nil {
			t.Fatal(err)
		}
		n.conn = n.reopen(func(*Options) {})
	}
	spoil()
	n.write()
	if is, want := n.filtered(), n.needed(); !maps.Equal(is, want) {
		t.Errorf("%v, want %v", is, want)
	}
	spoil()
	n.conn.version = "another"
	if err := n.conn.Write(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	want := n.needed()
	want[7] |= 7
	if is := n.filtered(); !maps.Equal(is, want) {
		t.Errorf("with programs of another version: %v, want %v", is, want)
	}
}

// The program and Write agree about the bits of addresses.
func TestFilteredAddresses(t *testing.T) {
	n := newNode(t)
	serve(t, n.opt.NetNS, "127.0.0.1:53")
	serve(t, n.opt.NetNS, "[::1]:53")
	random := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		var b [16]byte
		for i := range 4 {
			binary.NativeEndian.PutUint32(b[4*i:], random.Uint32())
		}
		b[0] = 0xfd
		v6, v4 := netip.AddrPortFrom(netip.AddrFrom16(b), 53).String(), netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, b[1], b[2], b[3]}), 53).String()
		n.write(append(service(v6, unix.IPPROTO_UDP, OfNode, "[::1]:53"), service(v4, unix.IPPROTO_UDP, OfNode, "127.0.0.1:53")...)...)
		for family, to := range map[int]string{unix.AF_INET: v4, unix.AF_INET6: v6} {
			n.with(family, func(s *socket) error {
				_, from, err := s.ask(to)
				if err == nil && from != to {
					err = errors.New("the reply seems to come from " + from)
				}
				if err != nil {
					return fmt.Errorf("%s: %w", to, err)
				}
				return nil
			})
		}
	}
}
