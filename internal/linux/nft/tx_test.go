package nft

import (
	"context"
	"net/netip"
	"testing"
	"time"
)

// A transaction prints its commands in the order of execution, not in that of the calls.
func TestTxPrintsInOrder(t *testing.T) {
	tx := &Tx{}
	tx.DeleteSet(ip4, "old-set")
	tx.DeleteChain(ip4, "old-chain")
	tx.FlushChain(ip4, "old-chain")
	tx.Add(ip4, some, first)
	tx.Delete(ip4, some, first)
	tx.Add(ip4, frontends, Element{
		Key: string(Key{}.Addr(addr(IP4, 1)).Proto(17).Port(53)), Data: string(Key{}.ClassID(0x01100003)), Comment: "ns/a",
	})
	tx.SetChain(ip4, Chain{
		Name: "c", Hook: &Hook{Type: "nat", Point: Output, Priority: -100}, Rules: []Rule{NewRule(Drop())},
	})
	tx.AddSet(ip4, frontends)
	tx.AddSet(ip4, clients)
	tx.AddSet(ip4, backends)
	tx.AddTable(ip4)
	tx.DeleteTable(tables[1])
	want := `delete table ip6 t
add table ip t
add map ip t fronts { type ipv4_addr . inet_proto . inet_service : classid; }
add map ip t clients { type classid . ipv4_addr : classid; flags dynamic,timeout; size 1000; }
add map ip t backends { type ipv4_addr . inet_proto . inet_service . classid : ipv4_addr . inet_service; }
add chain ip t c { type nat hook output priority -100; policy accept; }
flush chain ip t c
add rule ip t c drop
delete element ip t some { 10.0.0.1 }
add element ip t some { 10.0.0.1 }
add element ip t fronts { 10.0.0.1 . udp . 53 comment "ns/a" : 110:3 }
flush chain ip t old-chain
delete set ip t old-set
delete chain ip t old-chain
`
	if got := tx.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if tx.Size() != 12 {
		t.Errorf("size %d, want 12", tx.Size())
	}
}

// Deleting and adding a key in one transaction replaces the element, in any order of the calls.
func TestReplaceInOneTransaction(t *testing.T) {
	for name, k := range kernels(t) {
		tx := allOf(IP4, ip4)
		key := string(Key{}.Addr(addr(IP4, 1)).Proto(6).Port(80))
		tx.Add(ip4, frontends, Element{Key: key, Data: "aaaa", Comment: "before"})
		commit(t, k, tx)
		tx = &Tx{}
		tx.Add(ip4, frontends, Element{Key: key, Data: "bbbb", Comment: "after"})
		if err := k.Commit(context.Background(), tx); err == nil {
			t.Errorf("%s: a key has two values", name)
		}
		tx.Delete(ip4, frontends, Element{Key: key})
		commit(t, k, tx)
		want := Element{Key: key, Data: "bbbb", Comment: "after"}
		if got, _ := read(t, k, ip4).Sets["fronts"].Elements.Get(key); got != want {
			t.Errorf("%s: got %q", name, got)
		}
	}
}

// Chains and sets that refer to each other are deleted together once they are empty.
func TestDeleteObjectsThatReferToEachOther(t *testing.T) {
	for name, k := range kernels(t) {
		tx := &Tx{}
		tx.AddTable(ip4)
		tx.AddSet(ip4, ways)
		tx.AddSet(ip4, some)
		tx.SetChain(ip4, Chain{Name: "a", Rules: []Rule{NewRule(In("some", Source(IP4)), Jump("b"))}})
		tx.SetChain(ip4, Chain{Name: "b", Rules: []Rule{NewRule(Dispatch("ways", Priority()))}})
		tx.SetChain(ip4, Chain{Name: "c"})
		e := Element{Key: string(Key{}.ClassID(1)), Goto: "c"}
		tx.Add(ip4, ways, e)
		commit(t, k, tx)
		gone := &Tx{}
		for _, c := range []string{"b", "a", "c"} {
			gone.FlushChain(ip4, c)
			gone.DeleteChain(ip4, c)
		}
		gone.DeleteSet(ip4, "some")
		gone.Delete(ip4, ways, e)
		gone.DeleteSet(ip4, "ways")
		commit(t, k, gone)
		if got := read(t, k, ip4).String(); got != "" {
			t.Errorf("%s: left\n%s", name, got)
		}
	}
}

func TestRanges(t *testing.T) {
	for _, c := range []struct{ prefix, first, last, end string }{
		{"10.0.0.0/8", "10.0.0.0", "10.255.255.255", "11.0.0.0"},
		{"10.1.2.3/8", "10.0.0.0", "10.255.255.255", "11.0.0.0"},
		{"10.0.0.1/32", "10.0.0.1", "10.0.0.1", "10.0.0.2"},
		{"10.0.0.128/25", "10.0.0.128", "10.0.0.255", "10.0.1.0"},
		{"255.255.255.255/32", "255.255.255.255", "255.255.255.255", "invalid IP"},
		{"0.0.0.0/0", "0.0.0.0", "255.255.255.255", "invalid IP"},
		{"::/0", "::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "invalid IP"},
		{"fd00::/127", "fd00::", "fd00::1", "fd00::2"},
	} {
		p := netip.MustParsePrefix(c.prefix)
		e, behind := Range("", p), Range("key ", p)
		first, _ := netip.AddrFromSlice([]byte(e.Key))
		end, _ := netip.AddrFromSlice([]byte(e.End))
		last, _ := netip.AddrFromSlice([]byte(behind.End[4:]))
		if first.String() != c.first || end.String() != c.end || last.String() != c.last || behind.Key != "key "+e.Key {
			t.Errorf("%s: %s to %s, end %s; want %+v", p, first, last, end, c)
		}
	}
}

func TestSeconds(t *testing.T) {
	for d, want := range map[time.Duration]string{
		time.Second: "1s", time.Minute: "1m", 3 * time.Hour: "3h", 24 * time.Hour: "1d",
		86399 * time.Second: "23h59m59s", 26*time.Hour + 61*time.Second: "1d2h1m1s",
	} {
		if got := seconds(d); got != want {
			t.Errorf("%d s: %q, want %q", int(d.Seconds()), got, want)
		}
	}
}

func TestStateComparesDefinitions(t *testing.T) {
	fake := NewFake()
	commit(t, fake, allOf(IP4, ip4))
	s := read(t, fake, ip4)
	c := Chain{Name: "any", Rules: everyRule(IP4)[1].Rules}
	hooked := c
	hooked.Hook = &Hook{Type: "nat", Point: Output}
	if !s.Chains["any"].Is(c) || s.Chains["any"].Is(hooked) || s.Chains["any"].SameHook(hooked) {
		t.Error("hooks are not compared")
	}
	c.Rules = c.Rules[1:]
	if s.Chains["any"].Is(c) || !s.Chains["any"].SameHook(c) {
		t.Error("rules are not compared")
	}
	dynamic := some
	dynamic.Dynamic = true
	if !s.Sets["some"].Is(IP4, some) || s.Sets["some"].Is(IP6, some) || s.Sets["some"].Is(IP4, dynamic) ||
		s.Sets["some"].Is(IP4, nets) {
		t.Error("sets are not compared")
	}
}
