package iptables

import (
	"encoding/binary"
	"hash/maphash"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// recorded reads a table as a kernel returned it: first the reply to GET_INFO, then the
// entries. The file name is like "nat.ipv4.blob".
func recorded(t testing.TB, path string) (layout, Stamp, []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return unpack(b, strings.Contains(path, "ipv6"))
}

func unpack(b []byte, six bool) (layout, Stamp, []byte) {
	family := IPv4
	if six {
		family = IPv6
	}
	var info [infoLen]byte
	n := copy(info[:], b)
	return protocolOf(family).layout, Stamp(info[nameLen:]), slices.Clone(b[n:])
}

func recordings(t testing.TB) []string {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.blob")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no recorded tables: %v", err)
	}
	return paths
}

// A digest depends on everything except counters.
func TestADigestLeavesOutCounters(t *testing.T) {
	for _, path := range recordings(t) {
		l, stamp, data := recorded(t, path)
		table, err := l.parse(stamp, data)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		seed := maphash.MakeSeed()
		ours := func(string) bool { return true }
		before := table.digest(seed, ours)
		first := table.chains[slices.IndexFunc(table.chains, func(c legacyChain) bool { return len(c.rules) > 0 })].rules[0]
		data[first.at+l.head-16]++ // a packet matched
		if !maps.Equal(before.Chains, table.digest(seed, ours).Chains) {
			t.Errorf("%s: counters make a difference", path)
		}
		data[first.at]++
		if maps.Equal(before.Chains, table.digest(seed, ours).Chains) {
			t.Errorf("%s: addresses make no difference", path)
		}
	}
}

// A table that cannot be decoded is an error.
func TestDamagedTablesAreErrors(t *testing.T) {
	const path = "testdata/nat.ipv4.blob"
	l, stamp, data := recorded(t, path)
	table, err := l.parse(stamp, data)
	if err != nil {
		t.Fatal(err)
	}
	var jump legacyRule
	for _, c := range table.chains {
		for _, r := range c.rules {
			if r.leads != none {
				jump = r
			}
		}
	}
	put16, put32 := binary.NativeEndian.PutUint16, binary.NativeEndian.PutUint32
	for want, damage := range map[string]func(*Stamp, []byte) []byte{
		"cut off":               func(_ *Stamp, b []byte) []byte { return b[:len(b)-100] },
		"the kernel announced":  func(s *Stamp, b []byte) []byte { put32(s[4*11:], 1<<30); return b },
		"target at 0 of":        func(_ *Stamp, b []byte) []byte { put16(b[l.target:], 0); return b },
		"of 0 bytes":            func(_ *Stamp, b []byte) []byte { put16(b[l.target+2:], 0); return b },
		"where no chain starts": func(_ *Stamp, b []byte) []byte { put32(b[jump.part+partHead:], 8); return b },
		"belongs to no chain":   func(s *Stamp, b []byte) []byte { put32(s[:], 0); return b },
	} {
		_, stamp, bad := recorded(t, path)
		bad = damage(&stamp, bad)
		if _, err := l.parse(stamp, bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// FuzzParse verifies that parse never panics, and that the rules that it returns are within
// the data.
func FuzzParse(f *testing.F) {
	for _, path := range recordings(f) {
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, strings.Contains(path, "ipv6"))
	}
	f.Fuzz(func(_ *testing.T, b []byte, six bool) {
		l, stamp, data := unpack(b, six)
		table, err := l.parse(stamp, data)
		if err != nil {
			return
		}
		table.outline(TableID{})
		table.digest(maphash.MakeSeed(), func(name string) bool { return len(name)%2 == 0 })
	})
}
