package xtables

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// recorded reads an image that a kernel handed over: first the answer to
// GET_INFO, then the entries. The file is named "nat.ipv4.blob".
func recorded(t testing.TB, path string) (Family, image) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return unpack(b, strings.Contains(path, "ipv6"))
}

func unpack(b []byte, six bool) (Family, image) {
	family := IPv4
	if six {
		family = IPv6
	}
	var info [infoLen]byte
	n := copy(info[:], b)
	img, _ := decodeInfo(info)
	img.data = b[n:]
	return family, img
}

func recordings(t testing.TB) []string {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.blob")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no recorded images: %v", err)
	}
	return paths
}

// What nothing is cut out of is written back as it was.
func TestARebuiltImageIsTheSame(t *testing.T) {
	for _, path := range recordings(t) {
		family, img := recorded(t, path)
		b, err := parse(family, img)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		again, kept := b.without(cut{})
		if !bytes.Equal(again.data, img.data) || again.entry != img.entry || again.underflow != img.underflow {
			t.Errorf("%s is not the same again", path)
		}
		if len(kept) != int(img.number) || !b.equal(again) {
			t.Errorf("%s: kept %d of %d entries", path, len(kept), img.number)
		}
		again.data[b.entries[1].at+b.counters]++ // a packet came by
		if !b.equal(again) {
			t.Errorf("%s: counters make a difference", path)
		}
		again.data[b.entries[1].at]++
		if b.equal(again) {
			t.Errorf("%s: addresses make no difference", path)
		}
	}
}

// An image without a chain is the table without the chain.
func TestARebuiltImageSaysTheRest(t *testing.T) {
	for _, path := range recordings(t) {
		family, img := recorded(t, path)
		b, err := parse(family, img)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		table := b.table(TableID{})
		for _, chain := range table.Chains {
			if !chain.Builtin {
				checkWithout(t, b, leaves(table, chain.Name))
			}
		}
	}
}

// leaves removes a chain and all that leads there.
func leaves(table Table, name string) Removal {
	r := Removal{Chains: []string{name}}
	for _, chain := range table.Chains {
		for _, rule := range chain.Rules {
			if rule.Jump && rule.Target == name {
				r.Rules = append(r.Rules, ChainRule{Chain: chain.Name, Rule: rule})
			}
		}
	}
	return r
}

func checkWithout(t *testing.T, b *blob, r Removal) {
	t.Helper()
	table := b.table(TableID{})
	c, err := r.cut(table)
	if err != nil {
		t.Fatalf("without %v: %v", r.Chains, err)
	}
	img, kept := b.without(c)
	family := IPv4
	if b.layout == layoutOf(IPv6) {
		family = IPv6
	}
	after, err := parse(family, img)
	if err != nil {
		t.Fatalf("without %v: %v", r.Chains, err)
	}
	if want, got := c.apply(table), after.table(TableID{}); !reflect.DeepEqual(want, got) {
		t.Errorf("without %v (-want +got):\n%s", r.Chains, cmp.Diff(want, got))
	}
	for i, k := range kept { // an entry keeps its bytes, but for where it leads
		x := b.data[b.entries[k].at:b.entries[k].part]
		y := after.data[after.entries[i].at:after.entries[i].part]
		if !bytes.Equal(x, y) {
			t.Errorf("without %v: entry %d is not what entry %d was", r.Chains, i, k)
		}
	}
}

// What cannot be understood is refused, and so never written.
func TestRefusesImagesThatAreDamaged(t *testing.T) {
	family, good := recorded(t, "testdata/nat.ipv4.blob")
	b, err := parse(family, good)
	if err != nil {
		t.Fatal(err)
	}
	jump := slices.IndexFunc(b.entries, func(e entry) bool { return e.leads != continues })
	user := b.segments[slices.IndexFunc(b.segments, func(s segment) bool { return s.hook == continues })]
	put16, put32 := binary.NativeEndian.PutUint16, binary.NativeEndian.PutUint32
	for want, damage := range map[string]func(*image){
		"cut off":                 func(i *image) { i.data = i.data[:len(i.data)-100] },
		"do not fit into":         func(i *image) { i.number = 1 << 30 },
		"announced were":          func(i *image) { i.number-- },
		"target at 0 of":          func(i *image) { put16(i.data[b.target:], 0) },
		"of 0 bytes":              func(i *image) { put16(i.data[b.target+2:], 0) },
		"target of 8 bytes":       func(i *image) { put16(i.data[b.entries[jump].part:], 8) },
		`target "" of 33 bytes`:   func(i *image) { put16(i.data[b.entries[jump].part:], 33) },
		"which are no chain":      func(i *image) { i.underflow[0] += 8 },
		"where no chain starts":   func(i *image) { put32(i.data[b.entries[jump].part+partHead:], 8) },
		"does not end with a":     func(i *image) { put32(i.data[b.entries[user.tail].part+partHead:], 8) },
		"not end with a return":   func(i *image) { put32(i.data[b.entries[user.tail].part+partHead:], 1<<32-1) },
		"belongs to no chain":     func(i *image) { i.hooks &^= 16 },
		"is there twice":          func(i *image) { copy(i.data[b.entries[user.first].part+partHead:], "OUTPUT\x00") },
		"the last entry is missi": func(i *image) { put32(i.data[b.entries[len(b.entries)-1].part+2:], 'X') },
	} {
		bad := good
		bad.data = slices.Clone(good.data)
		damage(&bad)
		if _, err := parse(family, bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// smaller leaves few chains, so that there is less to get wrong at random.
func smaller(t testing.TB, b []byte, six bool) []byte {
	t.Helper()
	family, img := unpack(b, six)
	parsed, err := parse(family, img)
	if err != nil {
		t.Fatal(err)
	}
	table := parsed.table(TableID{})
	c := cut{chains: make(map[string]bool), rules: make(map[place]bool)}
	left := 0
	for i, chain := range table.Chains {
		if !chain.Builtin {
			left++
			c.chains[chain.Name] = left > 2
		}
		for j, rule := range chain.Rules {
			c.rules[place{i, j}] = j > 1 || rule.Jump && i > 0
		}
	}
	for j, rule := range table.Chains[0].Rules {
		c.rules[place{0, j}] = c.chains[rule.Target]
	}
	img, _ = parsed.without(c)
	info := bytes.Clone(b[:infoLen])
	for hook := range hookCount {
		binary.NativeEndian.PutUint32(info[nameLen+4*(1+hook):], img.entry[hook])
		binary.NativeEndian.PutUint32(info[nameLen+4*(1+hookCount+hook):], img.underflow[hook])
	}
	binary.NativeEndian.PutUint32(info[nameLen+4*(1+2*hookCount):], img.number)
	return append(info, img.data...)
}

func FuzzParse(f *testing.F) {
	for _, path := range recordings(f) {
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		six := strings.Contains(path, "ipv6")
		f.Add(smaller(f, b, six), six)
	}
	f.Fuzz(func(t *testing.T, b []byte, six bool) {
		family, img := unpack(b, six)
		parsed, err := parse(family, img)
		if err != nil {
			return
		}
		table := parsed.table(TableID{})
		if again, _ := parsed.without(cut{}); !bytes.Equal(again.data, img.data) {
			t.Error("a rebuilt image is not the same")
		}
		for _, chain := range table.Chains[:min(3, len(table.Chains))] {
			if !chain.Builtin {
				checkWithout(t, parsed, leaves(table, chain.Name))
			}
		}
	})
}
