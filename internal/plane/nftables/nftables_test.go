package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/kernel/nft"
	"github.com/sluice-proxy/sluice/internal/route"
)

const testMark = 0x4000

var bothFamilies = []route.Family{route.IPv4, route.IPv6}

// inNamespace runs a test on a thread of its own in a fresh network namespace.
// The thread ends with the test, and the namespace with it.
func inNamespace(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread dies
		defer close(done)
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		f(t)
	}()
	if err := <-done; err != nil {
		t.Skipf("no network namespace: %v (run as root, or under unshare -Urnm)", err)
	}
}

func addrs(list ...string) []netip.Addr {
	var all []netip.Addr
	for _, s := range list {
		all = append(all, netip.MustParseAddr(s))
	}
	return all
}

// everyShape is a cluster in which every kind of rule and element is needed.
func everyShape() *cluster.Store {
	s := cluster.NewStore()
	s.SetNode(&cluster.Node{Name: "a", Addresses: addrs("192.168.0.2", "2001:db8::1"),
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.180.0.0/24"), netip.MustParsePrefix("fd00:10:180::/64")}})
	s.SetServiceCIDRs([]netip.Prefix{netip.MustParsePrefix("172.30.0.0/16"), netip.MustParsePrefix("fd00:172:30::/112")})
	s.SetLocalAddresses(addrs("127.0.0.1", "::1", "192.168.0.2", "192.168.1.2", "2001:db8::1"))
	i := 0
	for _, local := range []bool{false, true} {
		for _, restricted := range []bool{false, true} {
			for _, affinity := range []int{0, 1} {
				for _, endpoints := range []string{"none", "remote", "both"} {
					i++
					addShape(s, i, &cluster.Service{InternalLocal: local && restricted, ExternalLocal: local,
						Restricted: restricted, Affinity: time.Duration(affinity) * 3 * time.Hour}, endpoints)
				}
			}
		}
	}
	return s
}

func addShape(s *cluster.Store, i int, svc *cluster.Service, endpoints string) {
	svc.Name = cluster.Name{Namespace: "ns", Name: fmt.Sprintf("svc-%d", i)}
	svc.Type = cluster.LoadBalancer
	svc.ClusterIPs = addrs(fmt.Sprintf("172.30.0.%d", i), fmt.Sprintf("fd00:172:30::%d", i))
	svc.ExternalIPs = addrs(fmt.Sprintf("198.51.100.%d", i), fmt.Sprintf("2001:db8:100::%d", i))
	svc.LoadBalancerIPs = addrs(fmt.Sprintf("203.0.113.%d", i), fmt.Sprintf("2001:db8:113::%d", i))
	if svc.Restricted {
		svc.SourceRanges = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/8")}
	}
	var ports []cluster.SlicePort
	for k, proto := range []cluster.Protocol{cluster.TCP, cluster.UDP, cluster.SCTP} {
		name := proto.String()
		svc.Ports = append(svc.Ports, cluster.ServicePort{Name: name, Protocol: proto, Port: 80, NodePort: uint16(30000 + 10*i + k)})
		ports = append(ports, cluster.SlicePort{Name: name, Protocol: proto, Port: 8080})
	}
	s.SetService(svc)
	for _, f := range []string{"10.180.%d.%d", "fd00:10:180:%d::%d"} {
		sl := &cluster.Slice{Name: cluster.Name{Namespace: "ns", Name: fmt.Sprintf("svc-%d-%d", i, len(f))}, Service: svc.Name, Ports: ports}
		if endpoints != "none" {
			sl.Endpoints = append(sl.Endpoints, endpoint(f, 1, i, "b"), endpoint(f, 2, i, "b"))
		}
		if endpoints == "both" {
			sl.Endpoints = append(sl.Endpoints, endpoint(f, 0, i, "a"))
		}
		s.SetSlice(sl)
	}
}

func endpoint(format string, net, i int, node string) cluster.Endpoint {
	return cluster.Endpoint{Addr: netip.MustParseAddr(fmt.Sprintf(format, net, i)), Node: node, Ready: true, Serving: true}
}

func compile(s *cluster.Store, opt route.Options) route.Change {
	opt.NodeName = "a"
	change, _ := route.NewCompiler(opt).Compile(s.Take())
	return change
}

// detectors are all ways to tell pods, each with other rules.
func detectors() map[string]route.Options {
	return map[string]route.Options{
		"none":       {},
		"cidr":       {Detector: route.DetectorOptions{Kind: route.DetectNodeCIDR}},
		"bridge":     {Detector: route.DetectorOptions{Kind: route.DetectBridge, Interface: "cbr0"}},
		"prefix":     {Detector: route.DetectorOptions{Kind: route.DetectInterfacePrefix, Interface: "veth"}},
		"masquerade": {MasqueradeAll: true},
		"primary":    {NodePorts: route.NodePortOptions{Primary: true, Localhost: true}},
	}
}

func TestEveryShapeIsKeptByTheKernelAndListed(t *testing.T) {
	for name, opt := range detectors() {
		t.Run(name, func(t *testing.T) {
			inNamespace(t, func(t *testing.T) {
				conn, err := nft.Open(nft.Options{})
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				roundTrip(t, conn, compile(everyShape(), opt))
				out, err := exec.Command("nft", "list", "ruleset").CombinedOutput()
				if err != nil || !strings.Contains(string(out), "ns/svc-7:udp") {
					t.Errorf("nft list ruleset: %v\n%.2000s", err, out)
				}
			})
		})
	}
}

func TestEveryShapeOnTheFake(t *testing.T) {
	for name, opt := range detectors() {
		t.Run(name, func(t *testing.T) { roundTrip(t, nft.NewFake(), compile(everyShape(), opt)) })
	}
}

// roundTrip applies everything, and wants nothing to be left to do: neither for
// the plane that did it nor for one that finds it.
func roundTrip(t *testing.T, kernel Kernel, change route.Change) {
	t.Helper()
	ctx := context.Background()
	for _, who := range []string{"first", "another"} {
		p := New(kernel, Options{Families: bothFamilies, Mark: testMark})
		for _, again := range []string{"start", "again"} {
			if err := p.Refresh(ctx); err != nil {
				t.Errorf("%s %s: %v", who, again, err)
				return
			}
			plan := p.Plan(change)
			if who+again != "firststart" && plan.Steps() != 0 {
				t.Errorf("%s plane, %s: %d steps, want none:\n%.3000s", who, again, plan.Steps(), plan)
				return
			}
			if err := plan.Apply(ctx); err != nil {
				t.Errorf("%s %s: %v\n%.300s", who, again, err, plan)
				return
			}
		}
	}
}
