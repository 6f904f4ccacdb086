package nft

import (
	"strings"
	"testing"
)

// The kernel accepts every statement that passes packets on, for a device, and nft prints what was meant. What it
// prints loads again.
func TestForwarding(t *testing.T) {
	conn, netns := realKernel(t)
	lo := Device{"lo", 1}
	netdev := Table{Netdev, "t"}
	macs, hosts4 := Set{Name: "macs", Key: []Type{Ether}}, Set{Name: "hosts4", Key: []Type{Index}, Data: []Type{Addr4}}
	hosts6 := Set{Name: "hosts6", Key: []Type{Index}, Data: []Type{Addr6}}
	tx := &Tx{}
	tx.AddTable(netdev)
	peers := Set{Name: "peers", Key: []Type{Ether}, Data: []Type{Addr4}}
	for _, s := range []Set{macs, hosts4, hosts6, peers} {
		tx.AddSet(netdev, s)
	}
	tx.Add(netdev, macs, Element{Key: string(Key{}.Ether([6]byte{2, 0, 0, 0, 0, 1}))})
	tx.Add(netdev, hosts4, Element{Key: string(Key{}.Index(1 << 16)), Data: string(Key{}.Addr(addr(IP4, 1)))})
	tx.Add(netdev, hosts6, Element{Key: string(Key{}.Index(1 << 16)), Data: string(Key{}.Addr(addr(IP6, 1)))})
	tx.SetChain(netdev, Chain{Name: "in", Hook: &Hook{Type: "filter", Device: lo.Name}, Rules: []Rule{
		NewRule(FromEther("macs"), Accept()),
		NewRule(Of(IP4), Not(FromEther("macs")), Whole(), HopsAbove(IP4, 1), Accept()),
		NewRule(Of(IP4), Fragment(IP4), Accept()),
		NewRule(Of(IP6), Fragment(IP6), Accept()),
		NewRule(Of(IP4), HopsAbove(IP4, 1), Forward(IP4, lo, "hosts4", Priority())),
		NewRule(Of(IP6), HopsAbove(IP6, 1), Forward(IP6, lo, "hosts6", Priority())),
		NewRule(Of(IP4), To(addr(IP4, 1)), ForHost(), FromEther("macs"), Forward(IP4, lo, "peers", EtherSource())),
		NewRule(Of(IP6), To(addr(IP6, 1)), Drop()),
		NewRule(Of(IP4), FromEther("macs"), SetSourceFrom(IP4, "peers", EtherSource()), SetDestination(addr(IP4, 2))),
	}})
	for i, f := range []Family{IP4, IP6} {
		tx.SetChain(netdev, Chain{Name: f.String(), Rules: []Rule{
			NewRule(Of(f), ICMPError(f), DrawByHash(81, 1, 1021, EmbeddedDestination(f), EmbeddedDestinationPort(f))),
		}})
		table, hosts := Table{f, "t"}, []Set{hosts4, hosts6}[i]
		tx.AddTable(table)
		tx.AddSet(table, hosts)
		hook := &Hook{Type: "filter", Point: Prerouting, Priority: -150}
		tx.SetChain(table, Chain{Name: "unknown", Hook: hook, Rules: []Rule{
			NewRule(Midstream(), SetHops(f, 5), Copy(lo, hosts.Name, Priority()), Drop()),
			NewRule(Unknown(f), Accept()),
		}})
		tx.SetChain(table, Chain{Name: "forward", Hook: &Hook{Type: "filter", Point: Forwarding}, Rules: []Rule{
			NewRule(Invalid(), Drop()),
		}})
		tx.SetChain(table, Chain{Name: "out", Hook: &Hook{Type: "filter", Point: Postrouting, Priority: 150}, Rules: []Rule{
			NewRule(Tracked(), FromHere(), CopyToDestination(f), Drop()),
			NewRule(FromHere(), Between(99), SetSource(addr(f, 8)), SetDestination(addr(f, 7))),
		}})
	}
	commit(t, conn, tx)
	listing := runNft(t, netns, "list", "ruleset")
	for _, want := range []string{
		"type filter hook ingress device \"lo\" priority filter; policy accept;",
		"elements = { 02:00:00:00:00:01 }", "elements = { 0:100 : 10.0.0.1 }", "elements = { 0:100 : fd00::1 }",
		"ether saddr @macs accept", "ether saddr != @macs ip frag-off & 16383 == 0 ip ttl > 1 accept",
		"ip frag-off & 16383 != 0 accept", "ip6 nexthdr ipv6-frag accept",
		"ip ttl > 1 fwd ip to meta priority map @hosts4 device \"lo\"",
		"ip6 hoplimit > 1 fwd ip6 to meta priority map @hosts6 device \"lo\"",
		"ip daddr 10.0.0.1 meta pkttype host ether saddr @macs fwd ip to ether saddr map @peers device \"lo\"",
		"ip6 daddr fd00::1 drop",
		"ether saddr @macs ip saddr set ether saddr map @peers ip daddr set 10.0.0.2\n",
		"ct state ! untracked fib saddr type local dup to ip daddr drop",
		"ct state ! untracked fib saddr type local dup to ip6 daddr drop",
		"fib saddr type local udp sport 99 udp dport 99 ip saddr set 10.0.0.8 ip daddr set 10.0.0.7",
		"fib saddr type local udp sport 99 udp dport 99 ip6 saddr set fd00::8 ip6 daddr set fd00::7",
		"ct state new tcp flags ! syn ip ttl set 5 dup to meta priority map @hosts4 device \"lo\" drop",
		"ct state new tcp flags ! syn ip6 hoplimit set 5 dup to meta priority map @hosts6 device \"lo\" drop",
		"\ticmp type != echo-request meta priority set jhash @th,192,32 . @th,240,16 mod 1021 seed 0x51 offset 1\n",
		"\ticmpv6 type < echo-request meta priority set jhash @th,256,128 . @th,400,16 mod 1021 seed 0x51 offset 1\n",
		"type filter hook forward priority filter; policy accept;\n\t\tct state invalid drop\n",
		"ct state invalid icmp type != echo-request accept", "ct state invalid icmpv6 type < echo-request accept",
	} {
		if !strings.Contains(listing, want) {
			t.Errorf("the listing lacks %q:\n%s", want, listing)
		}
	}
	const text = `add table netdev t
add set netdev t macs { type ether_addr; }
add map netdev t hosts4 { type classid : ipv4_addr; }
add map netdev t hosts6 { type classid : ipv6_addr; }
add chain netdev t in { type filter hook ingress device "lo" priority 0; policy accept; }
add element netdev t macs { 02:00:00:00:00:01 }
add element netdev t hosts4 { 1:0 : 10.0.0.1 }
`
	for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		if !strings.Contains(tx.String(), line+"\n") {
			t.Errorf("the transaction lacks %q:\n%s", line, tx)
		}
	}
}
