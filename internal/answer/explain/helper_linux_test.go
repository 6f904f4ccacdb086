package explain

import (
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/kernelspace"
	"github.com/sluice-proxy/sluice/internal/plane/nftables"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/source/convert"
	"github.com/sluice-proxy/sluice/internal/source/files"
	"github.com/sluice-proxy/sluice/internal/testing/hnstest"
	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

func addrs(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range texts {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

// pathless returns the facts of a plane without paths, which change with its rules.
func pathless(k plane.Kind) plane.Facts {
	f := k.Facts
	f.Path, f.OtherPort.Path, f.Ping.Path, f.Unallocated.Path = nil, nil, nil, nil
	return f
}

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// usual is a configuration as most nodes have it.
func usual() route.Options {
	return route.Options{
		NodeName:  "one",
		Detector:  route.DetectorOptions{Kind: route.DetectClusterCIDR, CIDRs: prefixes("10.244.0.0/16")},
		NodePorts: route.NodePortOptions{Primary: true},
	}
}

// settings are those that questions in testdata are asked under.
func settings() map[string]func(*route.Options) {
	detect := func(d route.DetectorOptions) func(*route.Options) {
		return func(o *route.Options) { o.Detector = d }
	}
	return map[string]func(*route.Options){
		"usual":          func(*route.Options) {},
		"ebpf":           func(*route.Options) {},
		"no-detector":    detect(route.DetectorOptions{}),
		"bridge":         detect(route.DetectorOptions{Kind: route.DetectBridge, Interface: "cni0"}),
		"prefix":         detect(route.DetectorOptions{Kind: route.DetectInterfacePrefix, Interface: "veth"}),
		"masquerade-all": func(o *route.Options) { o.MasqueradeAll = true },
		"all-nodeports":  func(o *route.Options) { o.NodePorts = route.NodePortOptions{All: true, Localhost: true} },
		"iptables": func(o *route.Options) {
			o.NodePorts = route.NodePortOptions{All: true, Loopback: route.LoopbackIncluded}
		},
		"iptables-primary": func(o *route.Options) { o.NodePorts = route.NodePortOptions{Primary: true} },
		"bound":            func(*route.Options) {},
		"iptables-bound":   func(o *route.Options) { o.NodePorts = route.NodePortOptions{Primary: true} },
		"iptables-no-localhost": func(o *route.Options) {
			o.NodePorts = route.NodePortOptions{All: true, Loopback: route.LoopbackNever}
		},
		"kernelspace":          windows,
		"kernelspace-dsr":      windows,
		"kernelspace-overlay":  windows,
		"kernelspace-features": windows,
		"ipv4-only":            func(o *route.Options) { o.Families = []route.Family{route.IPv4} },
	}
}

// windows is the configuration of a node with a recent HNS.
func windows(o *route.Options) {
	o.NodePorts, o.PreserveDestination = route.NodePortOptions{All: true}, true
}

// ofHNS returns the facts of a plane with an HNS: a recent one, with --enable-dsr ("-dsr"), with an
// overlay network ("-overlay"), or without optional features ("-features").
func ofHNS(t testing.TB, name string) plane.Facts {
	t.Helper()
	network := hns.Network{Name: "pods", Type: hns.L2Bridge}
	with := config.HNS{Network: "pods", SourceVIP: addrs("10.244.1.250")[0]}
	if name == "-overlay" {
		network.Type = hns.Overlay
	}
	with.DSR = name == "-dsr"
	fake := hnstest.New(network)
	if name == "-features" {
		fake.Version = hns.Features{V2: true}
	}
	opened, err := kernelspace.Kind(fake, nil).Open(t.Context(), plane.Setup{Config: &config.Config{HNS: with}})
	if err != nil {
		t.Fatal(err)
	}
	return *opened.Facts
}

// view compiles testdata/cluster.yaml for node one.
func view(t testing.TB, opt route.Options) View {
	t.Helper()
	store := cluster.NewStore()
	src := files.New(store, files.Options{
		Paths: []string{"testdata/cluster.yaml"}, NodeName: "one", Convert: convert.Converter{AllowExternalIPs: true},
		Report: func(all []route.Problem) { t.Errorf("problems in the manifests: %v", all) },
	})
	if err := src.Load(); err != nil {
		t.Fatal(err)
	}
	local := addrs("127.0.0.1", "::1", "192.168.0.2", "192.168.1.2", "2001:db8::2")
	store.SetLocalAddresses(local)
	c := route.NewCompiler(opt)
	c.Compile(store.Take())
	return View{
		View: proxy.View{Routes: c.Snapshot(), Started: true}, Node: store.Node(), Local: local,
		Plane: pathless(nftables.Kind()),
	}
}
