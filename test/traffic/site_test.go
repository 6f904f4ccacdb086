//go:build linux

package traffic

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
	"github.com/sluice-proxy/sluice/test/lab"
)

// site is a lab with three Services on its node A: "web" and "sticky", which three pods may serve, and "node", which
// the node itself serves.
type site struct {
	*testing.T
	*lab.Lab
	client   *lab.Host
	pods     []*lab.Host
	services []*cluster.Service
	serving  map[cluster.Name][]netip.Addr

	store    *cluster.Store
	compiler *route.Compiler
	opened   *plane.Opened

	want map[route.PortID]map[netip.AddrPort]uint64
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{
		T: t, Lab: lab.New(t, lab.Options{}), store: cluster.NewStore(), serving: map[cluster.Name][]netip.Addr{},
		want: map[route.PortID]map[netip.AddrPort]uint64{},
	}
	pod := func(on *lab.Host, addr string) *lab.Host {
		return s.Pod(on, addr, lab.Analog(netip.MustParseAddr(addr)).String())
	}
	s.client = pod(s.NodeA, "10.180.0.9")
	s.pods = []*lab.Host{pod(s.NodeA, "10.180.0.1"), pod(s.NodeB, "10.180.1.1"), pod(s.NodeA, "10.180.0.2")}
	for _, h := range append(s.pods, s.NodeA) {
		h.Serve(lab.TCP, 8080)
		h.Serve(lab.UDP, 8080)
	}
	node := planetest.NewNode("10.180.0.0/24", "fd00:10:180::/64")
	s.store.SetNode(node)
	s.store.SetServiceCIDRs(planetest.Prefixes("172.30.0.0/16", "fd00:172:30::/112"))
	s.store.SetLocalAddresses(append(s.NodeA.Addrs(), planetest.Addrs("127.0.0.1", "::1")...))
	for i, name := range []string{"web", "sticky", "node"} {
		vip := netip.AddrFrom4([4]byte{172, 30, 0, byte(10 + i)})
		svc := &cluster.Service{
			Name: cluster.Name{Namespace: "shop", Name: name}, Type: cluster.NodePort,
			ClusterIPs: []netip.Addr{vip, lab.Analog(vip)},
		}
		for k, protocol := range []cluster.Protocol{lab.TCP, lab.UDP} {
			svc.Ports = append(svc.Ports, cluster.ServicePort{
				Name: protocol.String(), Protocol: protocol, Port: 80, NodePort: uint16(30000 + 10*i + k),
			})
		}
		if name == "sticky" {
			svc.Affinity = time.Hour
		}
		s.services = append(s.services, svc)
		s.store.SetService(svc)
	}
	opt := route.Options{
		NodeName: "a", Families: route.Families(), Detector: route.DetectorOptions{Kind: route.DetectNodeCIDR},
	}
	s.compiler = route.NewCompiler(opt)
	return s
}

// endpoints makes hosts the endpoints of a Service.
func (s *site) endpoints(service string, hosts ...*lab.Host) {
	name := cluster.Name{Namespace: "shop", Name: service}
	delete(s.serving, name)
	for _, family := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		slice := &cluster.Slice{Name: name, Service: name, Ports: []cluster.SlicePort{
			{Name: "tcp", Protocol: lab.TCP, Port: 8080}, {Name: "udp", Protocol: lab.UDP, Port: 8080},
		}}
		slice.Name.Name += family.String()
		for _, h := range hosts {
			addr := h.Addr(family)
			slice.Endpoints = append(slice.Endpoints, planetest.Endpoint(addr.String(), "a"))
			s.serving[name] = append(s.serving[name], addr)
		}
		s.store.SetSlice(slice)
	}
}

// open opens a plane, which reads the kernel.
func (s *site) open(kind plane.Kind) (stop func()) {
	s.Helper()
	opened, err := kind.Open(s.Context(), plane.Setup{
		Config: &config.Config{MasqueradeMark: 0x4000, SyncPeriod: 30 * time.Second}, NetNS: s.NodeA.NetNSFD(),
		Families: route.Families(), Log: slog.New(slog.NewTextHandler(s.Output(), nil)),
	})
	if err != nil {
		s.Fatal(err)
	}
	if err := opened.Plane.Refresh(s.Context()); err != nil {
		s.Fatal(err)
	}
	s.opened = opened
	ctx, cancel := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	for _, p := range opened.Parts {
		parts.Go(func() {
			if p.Run != nil {
				if err := p.Run(ctx); err != nil {
					s.Error(err)
				}
			}
			<-ctx.Done()
			if p.Close != nil {
				_ = p.Close()
			}
		})
	}
	stop = sync.OnceFunc(func() {
		cancel()
		parts.Wait()
		if opened.Close != nil {
			_ = opened.Close()
		}
	})
	s.Cleanup(stop)
	return stop
}

// sync writes what has changed; after open it compares all.
func (s *site) sync() {
	s.Helper()
	change, problems := s.compiler.Compile(s.store.Take())
	if len(problems) > 0 {
		s.Fatal(problems)
	}
	if err := s.opened.Plane.Plan(change).Apply(s.Context()); err != nil {
		s.Fatal(err)
	}
}
