//go:build linux

package hostile

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

// Services with ejection: of a victim, of the tenant who attacks, and one of which a pod really is dead.
const (
	victimIP, tenantIP, halfDeadIP = "172.30.0.90", "172.30.0.91", "172.30.0.92"

	tenantAddr = "10.180.0.66"
	silentAddr = "10.180.0.67"
)

// failures are connections that a tenant lets fail on purpose. They eject no endpoint of another Service, and take no
// memory, while an endpoint that is dead leaves all the same.
func failures() []attack {
	return []attack{{
		name: "connections that fail on purpose", duration: 12 * time.Second,
		planes: []plane{nftables, userspace, ebpf},
		flags:  []string{"--ejection=on"},
		before: func(s *attackTest) { s.addEjecting() },
		during: func(ctx context.Context, s *attackTest) error { return s.letFail(ctx) },
		after: func(s *attackTest) {
			if out, code := s.runSluice("get", "backends", "victim"); code != 0 || strings.Contains(out, "connections of") {
				s.Errorf("endpoints of the victim were ejected (exit status %d):\n%s\n%s", code, out, s.daemon.Log)
			}
			if n := s.daemon.Log.Count(silentAddr + ":80 "); n == 0 {
				s.Errorf("the dead endpoint was not ejected:\n%s", s.daemon.Log)
			}
		},
	}}
}

// addEjecting adds the Services, and the pod of the tenant.
func (s *attackTest) addEjecting() {
	s.Helper()
	ports := []object{{"port": 80}}
	add := func(name, ip string, pods ...string) {
		s.write("good-"+name+".json", []object{
			harness.Service(name, object{"clusterIP": ip, "ports": ports}), harness.EndpointSlice(name, "IPv4", ports, pods...),
		})
	}
	add("victim", victimIP, s.pods[0].Addr4().String(), s.pods[1].Addr4().String())
	add("tenant", tenantIP, tenantAddr, "10.180.0.68", "10.180.0.69")
	add("halfdead", halfDeadIP, s.pods[0].Addr4().String(), silentAddr)
}

// letFail lets connections fail until the context ends.
func (s *attackTest) letFail(ctx context.Context) error {
	tenant := s.lab.Pod(s.lab.NodeA, tenantAddr)
	other := s.lab.Pod(s.lab.NodeA, "10.180.0.70")
	silent := s.lab.Pod(s.lab.NodeA, silentAddr)
	// The tenant drops the answers of servers. Nothing listens at its own port.
	for host, rule := range map[*lab.Host]string{tenant: "tcp flags & (syn|ack) == (syn|ack) drop", silent: "drop"} {
		rules := "table inet t { chain in { type filter hook input priority 0; " + rule + "; }; }"
		if out, err := host.Run(rules, "nft", "-f", "-"); err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
	}
	to := func(ip string) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(ip), 80) }
	var group sync.WaitGroup
	repeat := func(from *lab.Host, ip string, spoof func() netip.AddrPort) {
		group.Go(func() {
			for ctx.Err() == nil {
				from.Try(lab.Probe{Protocol: lab.TCP, To: to(ip), From: spoof(), Timeout: 30 * time.Millisecond})
			}
		})
	}
	own := func() netip.AddrPort { return netip.AddrPort{} }
	forged := func() netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 180, 0, byte(100 + rand.IntN(100))}), 0)
	}
	for _, ip := range []string{victimIP, tenantIP, tenantIP} {
		repeat(tenant, ip, own)
		repeat(tenant, ip, forged)
	}
	for _, from := range []*lab.Host{s.client, other} { // real clients
		repeat(from, halfDeadIP, own)
	}
	group.Wait()
	return nil
}
