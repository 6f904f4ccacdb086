package userspace

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// A NodePort whose address on ::1 another program has does not refuse its Service. A write opens it once it is free, as
// the Service is then.
func TestAbsentSocketsAreTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		absent := 0
		r := &rig{t: t, engine: newFakeEngine(), table: &route.Table{Services: map[cluster.Name]*route.Service{}}}
		r.table.Host.NodePorts.Loopback6 = true
		r.Plane = New(r.engine.Listen, Options{
			Rules:  &rulePlane{fakeRules: newFakeRules()},
			Absent: func(cluster.Name, error) { absent++ },
		})
		const at = "[::1]:30080"
		taken := socketAddr{cluster.TCP, netip.MustParseAddrPort(at)}
		r.engine.others[taken] = true
		balance := route.Action{Verdict: route.Balance}
		nodePort := func(others route.Action) *route.Service {
			return &route.Service{Name: cluster.Name{Namespace: "default", Name: "web"}, Ports: []route.Port{{
				Protocol: cluster.TCP, Family: route.IPv6, Cluster: []netip.AddrPort{netip.MustParseAddrPort("[fd00::5]:80")},
				Frontends: []route.Frontend{{Kind: route.NodePort, Port: 30080, Pods: balance, Node: balance, Others: others}},
			}}}
		}
		r.ok(r.load(nodePort(balance)))
		r.ok(r.set(nodePort(route.Action{Verdict: route.Drop})))
		if n := len(r.Sockets()); absent != 1 || n != 0 || r.sockets.count() != 0 || r.sockets.failures.Load() != 1 {
			t.Errorf("%d absent, %d sockets, %d failures, want 1, 0, 1", absent, n, r.sockets.failures.Load())
		}
		delete(r.engine.others, taken)
		time.Sleep(retryPeriod)
		r.ok(r.set(&route.Service{Name: cluster.Name{Namespace: "default", Name: "other"}}))
		l := r.engine.open[taken]
		if l == nil || len(r.Sockets()) != 1 || r.sockets.count() != 1 {
			t.Fatal("the socket is not open although its address is free")
		}
		if client := netip.MustParseAddr("2001:db8::9"); !l.admit(client).Refused || l.admit(netip.IPv6Loopback()).Refused {
			t.Error("it admits clients as before the last change of the Service")
		}
		r.ok(r.set(&route.Service{Name: cluster.Name{Namespace: "default", Name: "web"}}))
		if r.engine.open[taken] != nil || len(r.sockets.open) != 0 {
			t.Error("the socket is still open")
		}
	})
}
