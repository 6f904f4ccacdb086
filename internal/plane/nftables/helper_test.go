package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
	"github.com/sluice-proxy/sluice/internal/kernel/nft"
	"github.com/sluice-proxy/sluice/internal/route"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

const testMark = 0x4000

var bothFamilies = []route.Family{route.IPv4, route.IPv6}

var bothTables = []nft.Table{{Family: nft.IP4, Name: TableName}, {Family: nft.IP6, Name: TableName}}

// realKernel returns a door to nf_tables in a fresh network namespace.
func realKernel(t testing.TB) (conn *nft.Conn, netns int) {
	t.Helper()
	netns = kerneltest.Namespace(t)
	conn, err := nft.Open(nft.Options{NetNS: netns})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return conn, netns
}

// runNft runs the nft program in a namespace, as an operator would, and
// returns what it printed.
func runNft(t testing.TB, netns int, stdin string, args ...string) (string, error) {
	t.Helper()
	var out strings.Builder
	var failed error
	kerneltest.Do(t, netns, func() error {
		cmd := exec.Command("nft", args...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &out
		failed = cmd.Run()
		return nil
	})
	return out.String(), failed
}

func addrs(list ...string) []netip.Addr {
	var all []netip.Addr
	for _, s := range list {
		all = append(all, netip.MustParseAddr(s))
	}
	return all
}

func prefixes(list ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, s := range list {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}

func endpoint(addr, node string) cluster.Endpoint {
	return cluster.Endpoint{Addr: netip.MustParseAddr(addr), Node: node, Ready: true, Serving: true}
}

func node(podCIDRs ...string) *cluster.Node {
	return &cluster.Node{Name: "a", Addresses: addrs("192.168.0.2", "2001:db8::1"), PodCIDRs: prefixes(podCIDRs...)}
}

// everyShape is a cluster in which every kind of rule and element is needed.
func everyShape() *cluster.Store {
	s := cluster.NewStore()
	s.SetNode(node("10.180.0.0/24", "fd00:10:180::/64"))
	s.SetServiceCIDRs(prefixes("172.30.0.0/16", "fd00:172:30::/112"))
	s.SetLocalAddresses(addrs("127.0.0.1", "::1", "192.168.0.2", "192.168.1.2", "2001:db8::1"))
	i := 0
	for _, local := range []bool{false, true} {
		for _, restricted := range []bool{false, true} {
			for _, affinity := range []int{0, 1} {
				for _, endpoints := range []string{"none", "remote", "both"} {
					i++
					addShape(s, i, &cluster.Service{
						InternalLocal: local && restricted, ExternalLocal: local,
						Restricted: restricted, Affinity: time.Duration(affinity) * 3 * time.Hour,
					}, endpoints)
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
		svc.SourceRanges = prefixes("10.0.0.0/8", "10.1.0.0/16", "fd00::/8")
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
			sl.Endpoints = append(sl.Endpoints, endpoint(fmt.Sprintf(f, 1, i), "b"), endpoint(fmt.Sprintf(f, 2, i), "b"))
		}
		if endpoints == "both" {
			sl.Endpoints = append(sl.Endpoints, endpoint(fmt.Sprintf(f, 0, i), "a"))
		}
		s.SetSlice(sl)
	}
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

// load makes the kernel do what the change says, from whatever it does now.
func load(t testing.TB, kernel Kernel, change route.Change, families ...route.Family) *Plane {
	t.Helper()
	if len(families) == 0 {
		families = bothFamilies
	}
	p := New(kernel, Options{Families: families, Mark: testMark})
	if err := p.Refresh(context.Background()); err != nil {
		t.Fatal(err)
	}
	plan := p.Plan(change)
	if err := plan.Apply(context.Background()); err != nil {
		t.Fatalf("%v\n%.2000s", err, plan)
	}
	return p
}

// settled wants a plane that looks at the kernel for the first time to find
// nothing to do.
func settled(t testing.TB, kernel Kernel, table *route.Table, families ...route.Family) {
	t.Helper()
	if len(families) == 0 {
		families = bothFamilies
	}
	p := New(kernel, Options{Families: families, Mark: testMark})
	if err := p.Refresh(context.Background()); err != nil {
		t.Fatal(err)
	}
	if plan := p.Plan(route.Change{Table: table}); plan.Steps() != 0 {
		t.Fatalf("%d steps left to do, want none:\n%.3000s", plan.Steps(), plan)
	}
}
