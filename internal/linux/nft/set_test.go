package nft

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// textsOf returns the elements of a set as text prints them, sorted.
func textsOf(s Set, f Family, elements []Element) []string {
	var texts []string
	for _, e := range elements {
		texts = append(texts, e.text(s, f))
	}
	slices.Sort(texts)
	return texts
}

// listed returns the elements in the output of nft for a set, sorted. nft may insert line breaks after commas.
func listed(listing string) []string {
	_, all, found := strings.Cut(listing, "elements = {")
	if !found {
		return nil
	}
	all = all[:strings.LastIndex(all, "}\n\t}")]
	var texts []string
	for e := range strings.SplitSeq(all, ",") {
		texts = append(texts, strings.Join(strings.Fields(e), " "))
	}
	slices.Sort(texts)
	return texts
}

// everyElement returns elements of each kind for the sets that rules use.
func everyElement(f Family) map[string][]Element {
	frontend := func(i int, proto uint8, port uint16) Key { return Key{}.Addr(addr(f, i)).Proto(proto).Port(port) }
	value := func(major, minor uint32) string { return string(Key{}.ClassID(major<<16 | minor)) }
	return map[string][]Element{
		"fronts": {
			{Key: string(frontend(1, 6, 80)), Data: value(0x110, 3), Comment: "ns/name:port"},
			{Key: string(frontend(1, 17, 53)), Data: value(1, 0xffff), Comment: strings.Repeat("c", MaxComment-1)},
			{Key: string(frontend(2, 132, 65535)), Data: value(0xffff, 0)},
		},
		"backends": {
			{Key: string(frontend(1, 6, 80).Index(0)), Data: string(Key{}.Addr(addr(f, 9)).Port(8080))},
			{Key: string(frontend(1, 6, 80).Index(65534)), Data: string(Key{}.Addr(addr(f, 10)).Port(1))},
		},
		"ways":    {{Key: value(0x110, 3), Goto: "other"}, {Key: value(1, 0), Goto: "any"}},
		"direct":  {{Key: string(frontend(1, 6, 80)), Goto: "other", Comment: "c"}},
		"some":    {{Key: string(Key{}.Addr(addr(f, 1)))}},
		"pairs":   {{Key: string(Key{}.Addr(addr(f, 1)).Addr(addr(f, 1)))}},
		"allowed": rangesFrom(frontend(1, 6, 80), prefixesOf(f)...),
		"nets":    rangesFrom(nil, prefixesOf(f)...),
	}
}

// prefixesOf returns prefixes with edge cases that do not overlap.
func prefixesOf(f Family) []netip.Prefix {
	list := []string{"10.0.0.0/24", "10.0.1.0/24", "10.0.2.7/32", "0.0.0.0/8", "255.255.255.0/24"}
	if f == IP6 {
		list = []string{"fd00::/64", "fd00:0:0:1::/64", "fd00:0:0:2::7/128", "::/8", "ffff::/16"}
	}
	var all []netip.Prefix
	for _, p := range list {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

func rangesFrom(key Key, prefixes ...netip.Prefix) []Element {
	var all []Element
	for _, p := range prefixes {
		all = append(all, Range(string(key), p))
	}
	return all
}

// Elements are read back as they were sent, and nft prints them like we do.
func TestElementsAreReadAndPrintedLikeNft(t *testing.T) {
	for _, table := range tables {
		t.Run(table.String(), func(t *testing.T) {
			conn, netns := realKernel(t)
			f := table.Family
			tx := allOf(f, table)
			for _, s := range everySet() {
				for _, e := range everyElement(f)[s.Name] {
					tx.Add(table, s, e)
				}
			}
			commit(t, conn, tx)
			state := read(t, conn, table)
			for _, s := range everySet() {
				want := everyElement(f)[s.Name]
				set := state.Sets[s.Name]
				if !set.Is(f, s) {
					t.Errorf("set %s: the definition is %q", s.Name, set.definition)
				}
				if got := valuesOf(set); !sameElements(got, want) {
					t.Errorf("set %s: read\n%q\nwant\n%q", s.Name, got, want)
				}
				got := listed(runNft(t, netns, "list", s.word(), f.String(), table.Name, s.Name))
				if texts := textsOf(s, f, want); !slices.Equal(got, texts) {
					t.Errorf("set %s: nft prints\n%s\nwe print\n%s", s.Name, strings.Join(got, "\n"), strings.Join(texts, "\n"))
				}
			}
		})
	}
}

func sameElements(a, b []Element) bool {
	order := func(x, y Element) int { return strings.Compare(x.Key+x.End, y.Key+y.End) }
	slices.SortFunc(a, order)
	slices.SortFunc(b, order)
	return slices.Equal(a, b)
}

// The range of all addresses works, as the only one of its set.
func TestRangeOfAllAddresses(t *testing.T) {
	for _, table := range tables {
		conn, netns := realKernel(t)
		f := table.Family
		all := netip.PrefixFrom(map[Family]netip.Addr{IP4: netip.IPv4Unspecified(), IP6: netip.IPv6Unspecified()}[f], 0)
		want := map[string][]Element{
			"nets": rangesFrom(nil, all), "allowed": rangesFrom(Key{}.Addr(addr(f, 1)).Proto(6).Port(80), all),
		}
		tx := allOf(f, table)
		tx.Add(table, nets, want["nets"][0])
		tx.Add(table, allowed, want["allowed"][0])
		commit(t, conn, tx)
		state := read(t, conn, table)
		for name, elements := range want {
			if got := valuesOf(state.Sets[name]); !slices.Equal(got, elements) {
				t.Errorf("%s %s: read %q, want %q", table, name, got, elements)
			}
		}
		got := listed(runNft(t, netns, "list", "set", f.String(), table.Name, "nets"))
		if texts := textsOf(nets, f, want["nets"]); !slices.Equal(got, texts) {
			t.Errorf("nft prints %q, we print %q", got, texts)
		}
		undo := &Tx{}
		undo.Delete(table, nets, want["nets"][0])
		undo.Delete(table, allowed, want["allowed"][0])
		commit(t, conn, undo)
		if s := read(t, conn, table); len(s.Sets["nets"].Elements)+len(s.Sets["allowed"].Elements) != 0 {
			t.Errorf("%s: elements are left after deletion:\n%s", table, s)
		}
	}
}

// A netlink attribute holds 65,535 bytes. Elements that do not fit are sent in further
// attributes, and none is lost. Transactions are filled up to their limit, and used again.
func TestManyElements(t *testing.T) {
	const n = 20000
	for _, table := range tables {
		conn, _ := realKernel(t)
		tx := &Tx{}
		tx.AddTable(table)
		tx.AddSet(table, frontends)
		for i := range n {
			tx.Add(table, frontends, Element{
				Key:  string(Key{}.Addr(addr(table.Family, i)).Proto(6).Port(80)),
				Data: "abcd", Comment: strings.Repeat("c", i%MaxComment),
			})
			commitFull(t, conn, tx)
		}
		commit(t, conn, tx)
		elements := read(t, conn, table).Sets["fronts"].Elements
		if len(elements) != n {
			t.Fatalf("%s: %d elements of %d exist", table, len(elements), n)
		}
		gone := &Tx{}
		for _, e := range elements.All() {
			gone.Delete(table, frontends, e)
			commitFull(t, conn, gone)
		}
		commit(t, conn, gone)
		if left := len(read(t, conn, table).Sets["fronts"].Elements); left != 0 {
			t.Errorf("%s: %d elements left", table, left)
		}
	}
}

func TestDefinitionsArePrintedLikeNft(t *testing.T) {
	conn, netns := realKernel(t)
	for _, table := range tables {
		commit(t, conn, allOf(table.Family, table))
		for _, s := range everySet() {
			out := runNft(t, netns, "list", s.word(), table.Family.String(), table.Name, s.Name)
			out = regexp.MustCompile(`size \d+\n`).ReplaceAllString(out, "")
			_, body, _ := strings.Cut(out, s.Name+" {\n")
			var parts []string
			for line := range strings.Lines(body) {
				if line = strings.TrimSpace(line); line != "" && line != "}" {
					parts = append(parts, line+";")
				}
			}
			if got, want := strings.Join(parts, " "), definition(s.set(table)); got != want {
				t.Errorf("%s %s: nft prints %q, we print %q", table, s.Name, got, want)
			}
		}
	}
}
