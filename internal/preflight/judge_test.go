package preflight

import (
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/host"
	"github.com/sluice-proxy/sluice/internal/linux/rtnl"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/takeover"
	"github.com/sluice-proxy/sluice/internal/text"
)

// well is a node on which everything is as it should be.
func well() Facts {
	return Facts{
		Version: "v0.2.0", Tested: "1.37", Mode: "fast", Reason: "the default",
		Host: Host{
			System:       "Linux 6.18.5",
			Capabilities: []string{"CAP_NET_ADMIN", "CAP_NET_RAW"},
			Parameters: map[string]string{
				"net/ipv4/ip_forward": "1", "net/ipv4/ip_local_port_range": "32768\t60999", "net/ipv4/ip_local_reserved_ports": "",
				"net/netfilter/nf_conntrack_count": "812", "net/netfilter/nf_conntrack_max": "131072",
				"net/ipv4/conf/all/rp_filter": "0", "net/ipv4/conf/eth0/rp_filter": "2", "net/ipv4/conf/lo/rp_filter": "1",
			},
			Cgroup: "/sys/fs/cgroup",
			Network: rtnl.Network{Routes: 4, Links: []rtnl.Link{
				{Name: "lo", Kind: "device", MTU: 65536, Up: true},
				{Name: "eth0", Kind: "device", MTU: 1500, Up: true, Uplink: true},
				{Name: "veth1", Kind: "veth", MTU: 1450, Up: true},
			}},
			Primary: []netip.Addr{netip.MustParseAddr("192.168.0.4")},
		},
		Ports: []Port{
			{Field: "healthzBindAddress", At: netip.MustParseAddrPort("0.0.0.0:10256")},
			{Field: "metricsBindAddress", At: netip.MustParseAddrPort("127.0.0.1:10249")},
		},
		Detector: route.DetectorOptions{
			Kind: route.DetectClusterCIDR, CIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
		},
		Source: Source{Named: true, Server: "https://192.168.0.1:6443", Version: "v1.34.2"},
	}
}

// printed returns findings as a table.
func printed(all ...Finding) string {
	var b strings.Builder
	table := &text.Table{Out: text.NewColumns(&b)}
	for _, f := range all {
		table.Add(f.Rows()...)
	}
	_ = table.Out.Flush() // to memory
	return b.String()
}

// A node without a fault has one line for each subject.
func TestANodeWithoutAFault(t *testing.T) {
	const want = `LEVEL  SUBJECT        FOUND
ok     kernel         Linux 6.18.5 supports mode fast (the default)
ok     modules        the kernel has the modules that the mode needs, or loads them
ok     capabilities   this process has the capabilities that the mode needs: CAP_NET_ADMIN, CAP_NET_RAW
ok     cgroups        cgroup v2 is mounted at /sys/fs/cgroup; the mode does not need it
ok     other proxies  no other proxy, and no rules of kube-proxy
ok     ports          free: 0.0.0.0:10256, 127.0.0.1:10249
ok     ranges         local ports and NodePorts do not overlap, and the address of this node is not in clusterCIDR
ok     conntrack      812 of 131072 connections are tracked
ok     forwarding     on
ok     rp_filter      no interface is strict
ok     MTU            eth0 has 1500, and no interface of a pod has more
ok     version skew   https://192.168.0.1:6443 is Kubernetes v1.34.2
`
	if diff := cmp.Diff(want, printed(Judge(well())...)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// changed returns the lines that differ from those of a node without a fault.
func changed(change func(*Facts)) []string {
	f, usual := well(), map[Finding]bool{}
	for _, line := range Judge(f) {
		usual[line] = true
	}
	change(&f)
	var lines []string
	for _, line := range Judge(f) {
		if usual[line] {
			continue
		}
		text := string(line.Level) + " " + line.Subject + ": " + line.Found
		if line.Remedy != "" {
			text += " | " + line.Remedy
		}
		lines = append(lines, text)
	}
	return lines
}

func expect(t *testing.T, name string, change func(*Facts), want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, changed(change)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

const root = "run it as root, or in a pod with the rights of the DaemonSet"

func TestKernelAndRights(t *testing.T) {
	expect(t, "missing features", func(f *Facts) { f.Probe.Err = "no NAT: use CONFIG_NFT_NAT\nno fib" },
		"stop kernel: Linux 6.18.5 does not support mode fast: no NAT: use CONFIG_NFT_NAT",
		"stop kernel: Linux 6.18.5 does not support mode fast: no fib")
	expect(t, "what is not served", func(f *Facts) { f.Notes = []string{"IPv6 is not served: it is off"} },
		"warning kernel: IPv6 is not served: it is off")
	expect(t, "without the right", func(f *Facts) {
		f.Probe, f.Capabilities = Trial{"needs CAP_NET_ADMIN", true}, nil
		f.OthersErr = Trial{"list tables: not permitted\nlist sets: not permitted", true}
	},
		"warning kernel: Linux 6.18.5, mode fast not tested: needs CAP_NET_ADMIN",
		"warning capabilities: this process lacks CAP_NET_ADMIN, which Sluice and some of these tests need; "+
			"it has none | "+root,
		"warning other proxies: the search was not complete: "+
			"list tables: not permitted; list sets: not permitted | "+root)
	expect(t, "a mode that needs no right", func(f *Facts) { f.Unprivileged, f.Capabilities = true, nil },
		"ok capabilities: this process has the capabilities that the mode needs: none")
}

func TestBridges(t *testing.T) {
	ports := []rtnl.Link{{Name: "a", Bridge: "cni0"}, {Name: "b", Bridge: "cni0"}}
	expect(t, "not filtered", func(f *Facts) { f.Network.Links = append(f.Network.Links, ports...) },
		"warning modules: rules do not see packets between ports of the bridge cni0: "+
			"connections through a Service to a pod on the same bridge fail | "+
			"if pods are on it: modprobe br_netfilter && sysctl -w net.bridge.bridge-nf-call-iptables=1 "+
			"net.bridge.bridge-nf-call-ip6tables=1")
	expect(t, "filtered", func(f *Facts) {
		f.Network.Links = append(f.Network.Links, ports...)
		f.Parameters["net/bridge/bridge-nf-call-iptables"] = "1"
	})
}

func TestCgroups(t *testing.T) {
	const mounted = "cgroup v2 is mounted at /sys/fs/cgroup"
	expect(t, "none", func(f *Facts) { f.Cgroup = "" }, "ok cgroups: cgroup v2 is not mounted; the mode does not need it")
	expect(t, "needed", func(f *Facts) { f.Beyond = &Trial{} },
		"ok cgroups: "+mounted+", and connections can be balanced at sockets")
	expect(t, "needed, and a part", func(f *Facts) {
		f.Beyond, f.CgroupRoot = &Trial{Err: "no bpffs: mount it"}, Trial{Err: "x"}
	}, "warning cgroups: "+mounted+", which is not the root of all cgroups; "+
		"all connections are translated packet by packet: "+
		"no bpffs: mount it")
	expect(t, "not tested", func(f *Facts) { f.Beyond = &Trial{"needs CAP_BPF", true} },
		"warning cgroups: "+mounted+"; sockets were not tested: needs CAP_BPF")
}

func TestOtherProxies(t *testing.T) {
	kubeProxy := &takeover.KubeProxy{
		PID: 7, Program: "/kube-proxy", Mode: "iptables", Evidence: "it listens on port 10256",
	}
	left := takeover.Entry{Mechanism: takeover.NFTables, Count: 9, What: "table ip kube-proxy with 8 chains"}
	legacy := takeover.Entry{Mechanism: takeover.IPTablesLegacy, Count: 3, What: "3 chains"}
	expect(t, "beside", func(f *Facts) { f.Others = takeover.Found{KubeProxy: kubeProxy, Rules: []takeover.Entry{left}} },
		"warning other proxies: kube-proxy (pid 7, /kube-proxy) in mode iptables runs (it listens on port 10256): "+
			"both serve until it is stopped | start Sluice, then stop kube-proxy; Sluice removes the rules of kube-proxy")
	expect(t, "the same chains", func(f *Facts) { f.Others = takeover.Found{KubeProxy: kubeProxy, Same: true} },
		"stop other proxies: kube-proxy (pid 7, /kube-proxy) in mode iptables writes the same chains as mode fast, "+
			"and each overwrites the other | stop it before you start Sluice")
	lines := changed(func(f *Facts) {
		f.Others, f.OthersErr = takeover.Found{KubeProxy: kubeProxy, Same: true}, Trial{Err: "no ipsets"}
	})
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "warning other proxies: the search") ||
		!strings.HasPrefix(lines[1], "stop other proxies: ") {
		t.Errorf("found in spite of an error: %q", lines)
	}
	expect(t, "left", func(f *Facts) { f.Others.Rules = []takeover.Entry{left, legacy} },
		"ok other proxies: rules remain: nftables: table ip kube-proxy with 8 chains; Sluice removes them",
		"warning other proxies: rules remain: iptables-legacy: 3 chains | "+takeover.Remedy)
	expect(t, "Sluice", func(f *Facts) { f.Sluice = &Daemon{"v0.1.0", "fast", 8} },
		"ok other proxies: Sluice v0.1.0 runs in mode fast (pid 8); this program is v0.2.0")
	expect(t, "silent", func(f *Facts) { f.Sluice = &Daemon{} },
		"ok other proxies: a Sluice runs but does not answer here, perhaps as it is in another container; "+
			"this program is v0.2.0")
}

func TestPorts(t *testing.T) {
	take := func(pid int) func(*Facts) {
		return func(f *Facts) { f.Ports[0].Taken, f.Ports[0].PID, f.Ports[0].Holder = true, pid, "/bin/other" }
	}
	kubeProxy := &takeover.KubeProxy{PID: 7}
	both := func(fs ...func(*Facts)) func(*Facts) {
		return func(f *Facts) {
			for _, change := range fs {
				change(f)
			}
		}
	}
	expect(t, "taken", take(9),
		"warning ports: 0.0.0.0:10256 is taken by /bin/other (pid 9); "+
			"Sluice retries until it is free | stop it, or change healthzBindAddress")
	expect(t, "out of sight", take(0),
		"warning ports: 0.0.0.0:10256 is taken by a process that this one cannot see; "+
			"Sluice retries until it is free | stop it, or change healthzBindAddress")
	expect(t, "hard", both(take(9), func(f *Facts) { f.HardFail = true }),
		"stop ports: 0.0.0.0:10256 is taken by /bin/other (pid 9), and bindAddressHardFail is set | "+
			"stop it, or change healthzBindAddress")
	for _, pid := range []int{0, 8} {
		expect(t, "by Sluice", both(take(pid), func(f *Facts) { f.Sluice = &Daemon{"v0.2.0", "fast", 8} }),
			"ok other proxies: Sluice v0.2.0 runs in mode fast (pid 8); this program is v0.2.0",
			"ok ports: free: 0.0.0.0:10256 (Sluice), 127.0.0.1:10249")
	}
	expect(t, "beside Sluice", both(take(9), func(f *Facts) { f.Sluice = &Daemon{"v0.2.0", "fast", 8} }),
		"ok other proxies: Sluice v0.2.0 runs in mode fast (pid 8); this program is v0.2.0",
		"warning ports: 0.0.0.0:10256 is taken by /bin/other (pid 9); "+
			"Sluice retries until it is free | stop it, or change healthzBindAddress")
	lines := changed(both(take(7), func(f *Facts) { f.Others.KubeProxy = kubeProxy }))
	if len(lines) != 2 ||
		lines[1] != "warning ports: 0.0.0.0:10256 is taken by kube-proxy | stop kube-proxy; Sluice then opens the port" {
		t.Errorf("by kube-proxy: %q", lines)
	}
	expect(t, "none", func(f *Facts) { f.Ports = nil }, "ok ports: free: none")
	expect(t, "not listed", func(f *Facts) { f.PortsErr.Err = "no netlink" },
		"warning ports: not tested: no netlink | "+root)
}

func TestRanges(t *testing.T) {
	local := func(ports, reserved string) func(*Facts) {
		return func(f *Facts) {
			f.Parameters["net/ipv4/ip_local_port_range"], f.Parameters["net/ipv4/ip_local_reserved_ports"] = ports, reserved
		}
	}
	const meets = "warning ranges: local ports 1024-65535 include NodePorts (30000-32767 by default): " +
		"a connection of this node may occupy a NodePort | " +
		"sysctl -w net.ipv4.ip_local_reserved_ports=30000-32767"
	expect(t, "all ports", local("1024\t65535", ""), meets)
	expect(t, "some reserved", local("1024\t65535", "8080,30000-31000"), meets)
	expect(t, "all reserved", local("1024\t65535", "8080,30000-32767"))
	expect(t, "the last few, reserved", local("32000\t60999", "31999-32800"))
	expect(t, "not known", local("", ""))
	expect(t, "no range of pods", func(f *Facts) { f.Detector.CIDRs = nil },
		"warning ranges: clusterCIDR is not set: connections from outside to cluster IPs are not masqueraded | "+
			"set clusterCIDR, or another detectLocalMode")
	expect(t, "nodes in the range of pods", func(f *Facts) {
		f.Detector.CIDRs[0] = netip.MustParsePrefix("192.168.0.0/16")
	}, "warning ranges: the address 192.168.0.4 of this node is in clusterCIDR 192.168.0.0/16: "+
		"connections of nodes count as those of pods | set clusterCIDR to the range of pods only")
	expect(t, "pods by their interface", func(f *Facts) {
		f.Detector = route.DetectorOptions{Kind: route.DetectBridge}
	}, "ok ranges: local ports and NodePorts do not overlap")
}

func TestConntrack(t *testing.T) {
	const name = "net.netfilter.nf_conntrack_max"
	set := func(why error) func(*Facts) {
		return func(f *Facts) { f.Settings = []host.Effect{{Name: name, Wanted: "262144", Is: "131072", Err: why}} }
	}
	expect(t, "to be set", set(nil),
		"ok conntrack: "+name+" is 131072, and the configuration wants 262144; Sluice sets it")
	expect(t, "cannot be set", set(errors.New("read-only file system")),
		"warning conntrack: "+name+" is 131072, and the configuration wants 262144, but this process cannot set it: "+
			"read-only file system | on the host: sysctl -w "+name+"=262144, or the overlay sysctls")
	expect(t, "a parameter of a module", func(f *Facts) {
		f.Settings = []host.Effect{{Name: "/sys/module/x/hashsize", Wanted: "4", Err: errors.New("no such file")}}
	},
		"warning conntrack: /sys/module/x/hashsize is none, and the configuration wants 4, but this process cannot set it: "+
			"no such file | on the host: echo 4 > /sys/module/x/hashsize, or the overlay sysctls")
	expect(t, "nearly full", func(f *Facts) { f.Parameters["net/netfilter/nf_conntrack_count"] = "120000" },
		"warning conntrack: 120000 of 131072 connections are tracked: new connections are dropped "+
			"when the table is full | raise conntrack.min and conntrack.maxPerCore, or net.netfilter.nf_conntrack_max")
	expect(t, "no table", func(f *Facts) { delete(f.Parameters, "net/netfilter/nf_conntrack_count") },
		"ok conntrack: no connection is tracked yet")
}

func TestForwardingAndReversePath(t *testing.T) {
	expect(t, "off", func(f *Facts) { f.Parameters["net/ipv4/ip_forward"] = "0" },
		"warning forwarding: net.ipv4.ip_forward is 0: packets from pods and to NodePorts "+
			"do not reach backends on other nodes | sysctl -w net.ipv4.ip_forward=1, unless the network plugin does it")
	const what = ": a packet is dropped if its answer would leave by another interface, " +
		"as on nodes with several networks | " +
		"if the node has several networks: sysctl -w net.ipv4.conf.all.rp_filter=2"
	expect(t, "strict by its own", func(f *Facts) { f.Parameters["net/ipv4/conf/eth0/rp_filter"] = "1" },
		"warning rp_filter: strict at eth0"+what)
	expect(t, "strict by all", func(f *Facts) {
		f.Parameters["net/ipv4/conf/all/rp_filter"] = "1"
		for _, name := range []string{"a", "b", "c", "d", "e", "off"} {
			f.Network.Links = append(f.Network.Links, rtnl.Link{Name: name, Up: name != "off", MTU: 1500, Kind: "device"})
			f.Parameters["net/ipv4/conf/"+name+"/rp_filter"] = "0"
		}
	}, "warning rp_filter: strict at a, b, c, d and 1 other"+what)
}

func TestMTU(t *testing.T) {
	expect(t, "an overlay", func(f *Facts) {
		f.Network.Links = append(f.Network.Links, rtnl.Link{Name: "flannel.1", Kind: "vxlan", MTU: 1400, Up: true})
	}, "warning MTU: veth1 of a pod has 1450, but packets to other nodes may leave by flannel.1, which has 1400: "+
		"large packets get lost | set the MTU of the network plugin to 1400 or less")
	expect(t, "too small for IPv6", func(f *Facts) { f.Network.Links[1].MTU = 1200 },
		"warning MTU: eth0 has 1200, and IPv6 needs 1280 | raise it, or use IPv4 only")
	expect(t, "no pods", func(f *Facts) { f.Network.Links[2].Up = false },
		"ok MTU: eth0 has 1500, and there are no pods yet")
	expect(t, "no route", func(f *Facts) { f.Network.Links[1].Uplink = false }, "ok MTU: there is no default route yet")
	expect(t, "not listed", func(f *Facts) { f.NetworkErr.Err = "no netlink" },
		"warning MTU: not tested: no netlink | "+root)
}

func TestVersionSkew(t *testing.T) {
	const at = "https://192.168.0.1:6443 is Kubernetes "
	version := func(v string) func(*Facts) { return func(f *Facts) { f.Source.Version = v } }
	expect(t, "too old", version("v1.30.9"), "stop version skew: "+at+"v1.30.9 | use Kubernetes 1.31 or newer")
	expect(t, "the oldest", version("v1.31.0+k3s1"), "ok version skew: "+at+"v1.31.0+k3s1")
	expect(t, "newer", version("v1.38.0"), "warning version skew: "+at+"v1.38.0; "+
		"this Sluice is tested with 1.37 and older | use a newer Sluice")
	expect(t, "not a version", version("main"), "warning version skew: "+at+"main, which cannot be compared")
	source := func(s Source) func(*Facts) { return func(f *Facts) { f.Source = s } }
	expect(t, "manifests", source(Source{Manifests: true}), "ok version skew: not needed: Services come from manifests")
	expect(t, "none", source(Source{Trial: Trial{Err: "no API server is named"}}),
		"warning version skew: not compared: no API server is named")
	expect(t, "a wrong file", source(Source{Named: true, Trial: Trial{Err: "no such file"}}),
		"stop version skew: no such file | correct --kubeconfig or --master, or clientConnection.kubeconfig")
	expect(t, "no answer", source(Source{Server: "https://x", Trial: Trial{Err: "ask https://x: refused"}}),
		"stop version skew: ask https://x: refused | use an address of the API server that works without a service proxy, "+
			"not that of the Service kubernetes")
	expect(t, "forbidden", source(Source{Server: "https://x", Trial: Trial{"ask https://x: forbidden", true}}),
		"warning version skew: not compared: ask https://x: forbidden | bind the ClusterRole system:public-info-viewer")
}

// Text of other programs stays on its line, and scripts get the fields.
func TestFormats(t *testing.T) {
	stop := Finding{Stop, "ports", "a\nb", "c\x1b[2J"}
	if got, want := printed(stop), "LEVEL  SUBJECT  FOUND\nstop   ports    a b; to do: c [2J\n"; got != want {
		t.Errorf("text %q, want %q", got, want)
	}
	encoded, err := json.Marshal(Finding{Level: OK, Subject: "MTU", Found: "1500"})
	if want := `{"level":"ok","subject":"MTU","found":"1500"}`; err != nil || string(encoded) != want {
		t.Errorf("JSON %s, %v, want %s", encoded, err, want)
	}
	if !stop.Stops() {
		t.Error("a stop does not stop")
	}
}
