package layer2

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
)

// The rules of one family, as nft prints them. KEY is the key of a frontend.
func TestRules(t *testing.T) {
	var b strings.Builder
	self := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}
	short := strings.NewReplacer("ip daddr . ip protocol . th dport", "KEY",
		"meta protocol ip meta pkttype host ether saddr @peers", "FROM-NODE")
	devices := []nft.Device{{Name: "eth0", Index: 2}, {Name: "eth1", Index: 3}}
	chains := generation(0).chains(layout{devices, self, true, 4789})
	for _, table := range generation(0).tables()[:2] {
		for _, c := range chains[table] {
			if strings.HasSuffix(c.Name, "ip6") {
				continue
			}
			b.WriteString(table.String() + " " + c.Name + "\n")
			for _, r := range c.Rules {
				b.WriteString("\t" + short.Replace(r.String()) + "\n")
			}
		}
	}
	const want = `netdev sluice-direct errors-ip
	meta protocol ip meta priority set jhash @th,192,32 . @th,240,16 mod 1021 seed 0x51 offset 1
	meta protocol ip ip daddr @portless-by-client-ip meta priority set jhash @th,192,32 mod 1021 seed 0x51 offset 1
	meta protocol ip fwd ip to ip daddr . meta priority map @portless-owners-2-ip device "eth0"
	meta protocol ip fwd ip to ip daddr . meta priority map @portless-owners-3-ip device "eth1"
	meta priority set none
netdev sluice-direct fragments-ip
	meta protocol ip ip daddr != @portless-by-client-ip accept
	meta protocol ip meta priority set jhash ip saddr mod 1021 seed 0x51 offset 1
	meta protocol ip fwd ip to ip daddr . meta priority map @portless-owners-2-ip device "eth0"
	meta protocol ip fwd ip to ip daddr . meta priority map @portless-owners-3-ip device "eth1"
	meta priority set none
netdev sluice-direct forward-ip
	meta protocol ip ip frag-off & 0x3fff != 0 goto fragments-ip
	meta protocol ip meta priority set jhash ip saddr . th sport mod 1021 seed 0x51 offset 1
	meta protocol ip KEY @by-client-ip meta priority set jhash ip saddr mod 1021 seed 0x51 offset 1
	meta protocol ip fwd ip to KEY . meta priority map @owners-2-ip device "eth0"
	meta protocol ip fwd ip to KEY . meta priority map @owners-3-ip device "eth1"
	meta protocol ip icmp type != echo-request goto errors-ip
	meta priority set none
netdev sluice-direct answer-ip
	FROM-NODE ip ttl > 1 ip ttl set 2 fwd ip to ether saddr map @neighbours-2-ip device "eth0"
	FROM-NODE ip ttl > 1 ip ttl set 2 fwd ip to ether saddr map @neighbours-3-ip device "eth1"
	FROM-NODE ip saddr set ether saddr map @neighbours-2-ip ip daddr set 10.0.0.1 accept
	FROM-NODE ip saddr set ether saddr map @neighbours-3-ip ip daddr set 10.0.0.1 accept
	drop
netdev sluice-direct ingress-2
	meta protocol ip ip daddr @vips-ip ether saddr != @peers ip ttl > 1 goto forward-ip
	meta protocol ip6 ip6 daddr @vips-ip6 ether saddr != @peers ip6 hoplimit > 1 goto forward-ip6
	meta protocol ip ip daddr 192.0.0.7 goto answer-ip
	meta protocol ip6 ip6 daddr 100::c000:7 goto answer-ip6
netdev sluice-direct ingress-3
	meta protocol ip ip daddr @vips-ip ether saddr != @peers ip ttl > 1 goto forward-ip
	meta protocol ip6 ip6 daddr @vips-ip6 ether saddr != @peers ip6 hoplimit > 1 goto forward-ip6
	meta protocol ip ip daddr 192.0.0.7 goto answer-ip
	meta protocol ip6 ip6 daddr 100::c000:7 goto answer-ip6
ip sluice-direct pass
	dup to meta priority map @nodes-2 device "eth0" drop
	dup to meta priority map @nodes-3 device "eth1" drop
	meta priority set none
ip sluice-direct unknown
	meta l4proto tcp meta priority set jhash ip saddr . th sport mod 1021 seed 0x51 offset 1
	meta l4proto tcp KEY @by-client meta priority set jhash ip saddr mod 1021 seed 0x51 offset 1
	meta priority set KEY . meta priority map @owners ip ttl set 16 goto pass
	meta priority set none
ip sluice-direct lost
	meta l4proto tcp meta priority set jhash ip saddr . th sport mod 1021 seed 0x51 offset 1
	meta l4proto tcp KEY @by-client meta priority set jhash ip saddr mod 1021 seed 0x51 offset 1
	meta priority set KEY . meta priority map @former goto pass
	meta priority set KEY . meta priority map @owners goto pass
	meta priority set none
ip sluice-direct portless-unknown
	meta priority set jhash @th,192,32 . @th,240,16 mod 1021 seed 0x51 offset 1
	ip daddr @portless-by-client meta priority set jhash @th,192,32 mod 1021 seed 0x51 offset 1
	meta priority set ip daddr . meta priority map @portless-owners ip ttl set 16 goto pass
	meta priority set none
ip sluice-direct portless-lost
	meta priority set jhash @th,192,32 . @th,240,16 mod 1021 seed 0x51 offset 1
	ip daddr @portless-by-client meta priority set jhash @th,192,32 mod 1021 seed 0x51 offset 1
	meta priority set ip daddr . meta priority map @portless-former goto pass
	meta priority set ip daddr . meta priority map @portless-owners goto pass
	meta priority set none
ip sluice-direct prerouting
	ct state new meta l4proto tcp tcp flags & syn == 0 ip daddr @vips ip ttl > 16 goto unknown
	ct state new meta l4proto tcp tcp flags & syn == 0 ip daddr @vips ip ttl > 12 goto lost
	ct state invalid icmp type != echo-request ip daddr @vips ip ttl > 16 goto portless-unknown
	ct state invalid icmp type != echo-request ip daddr @vips ip ttl > 12 goto portless-lost
ip sluice-direct untranslated
	ct state invalid ip daddr @vips drop
ip sluice-direct copy-probes
	fib saddr type local udp sport 10265 udp dport 10265 ct state & untracked == 0 dup to ip daddr drop
ip sluice-direct send-probes
	fib saddr type local udp sport 10265 udp dport 10265 ip saddr set 192.0.0.8 ip daddr set 192.0.0.7
ip sluice-direct input
	udp dport 4789 @th,96,24 10264 ip saddr != @tunnel-ends drop
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
}

// Packets that enter pay for session affinity only if a port has it.
func TestRulesWithoutSessionAffinity(t *testing.T) {
	s, l := side{nft.IP4, true}, layout{devices: []nft.Device{{Name: "eth0", Index: 2}}}
	got := []string{s.enter(l).String()}
	for _, c := range s.forward(l) {
		for _, r := range c.Rules {
			got = append(got, c.Name+": "+r.String())
		}
	}
	want := []string{
		"meta protocol ip ip daddr @vips-ip ether saddr != @peers ip frag-off & 0x3fff == 0 ip ttl > 1 goto forward-ip",
		"errors-ip: meta protocol ip meta priority set jhash @th,192,32 . @th,240,16 mod 1021 seed 0x51 offset 1",
		`errors-ip: meta protocol ip fwd ip to ip daddr . meta priority map @portless-owners-2-ip device "eth0"`,
		"errors-ip: meta priority set none",
		"forward-ip: meta protocol ip meta priority set jhash ip saddr . th sport mod 1021 seed 0x51 offset 1",
		"forward-ip: meta protocol ip fwd ip to ip daddr . ip protocol . th dport . meta priority map @owners-2-ip " +
			`device "eth0"`,
		"forward-ip: meta protocol ip icmp type != echo-request goto errors-ip",
		"forward-ip: meta priority set none",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
}

// recorder records in which maps of slots transactions have elements. The order within a transaction does not matter.
type recorder struct {
	*fake

	order []string
	maps  []string // one after the other
}

func (r *recorder) Commit(ctx context.Context, tx *nft.Tx) error {
	in := map[string]bool{}
	for line := range strings.Lines(tx.String()) {
		if f := strings.Fields(line); f[1] == "element" { // add element ip TABLE MAP
			in[f[4]] = true
		}
	}
	for _, name := range r.order {
		if n := len(r.maps); in[name] && (n == 0 || r.maps[n-1] != name) {
			r.maps = append(r.maps, name)
		}
	}
	return r.fake.Commit(ctx, tx)
}

// A change of more than a transaction writes the map that packets need first last, so that nodes find connections in
// the middle of it (direct.Choice).
func TestOrderOfMaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, &fake{Fake: nft.NewFake()})
		r := &recorder{fake: w.kernel, order: []string{
			"former", "owners", "owners-2-ip", "portless-former", "portless-owners", "portless-owners-2-ip",
		}}
		w.f.opt.Kernel, w.f.opt.Room = r, func() int { return 10_000 }
		w.run()
		w.apply("web", 1, "b")
		before := w.kernel.Commits
		r.maps = nil
		w.apply("web", 1, "c") // all slots move
		if w.kernel.Commits-before < 10 {
			t.Errorf("the change has %d transactions", w.kernel.Commits-before)
		}
		if diff := cmp.Diff(r.order, r.maps); diff != "" {
			t.Errorf("maps (-want +got):\n%s", diff)
		}
	})
}
