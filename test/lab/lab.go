//go:build linux

package lab

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	speed "github.com/sluice-proxy/sluice/test/machine"
)

// T is the part of testing.TB that a lab uses. Programs that are not tests may implement it. Fatalf does not return.
type T interface {
	Helper()
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
	Cleanup(func())
}

// Options are options of a lab. The zero value is the default.
type Options struct {
	// Bridge, if set, is the name of the bridge of each node to which its pods are
	// attached, such as "cbr0". Without it the veths of pods are routed.
	Bridge string

	// VethPrefix is the prefix of the pods' interfaces on the node; "veth" if empty.
	VethPrefix string

	// Cgroups gives node A a cgroup (v2), in which its clients are, and each of its pods one below it. Programs that are
	// attached to the cgroup of the node see no other processes.
	Cgroups bool

	// Timeout is how long probes wait for an answer on a fast machine; two seconds if zero.
	Timeout time.Duration
}

// Soon is a Timeout for packets that are expected to be dropped.
const Soon = 150 * time.Millisecond

// Lab is a cluster in namespaces. Its methods may be called concurrently.
type Lab struct {
	NodeA   *Host // the node under test
	NodeB   *Host // another node
	Outside *Host // a client outside of the cluster; routes between everything
	Blocked *Host // another address of Outside, for clients that must be rejected

	*topology
	t T
}

// topology is the state that all views of a lab share.
type topology struct {
	options Options
	serial  atomic.Uint32

	mu    sync.Mutex
	nodes []*machine // with the outside first
	pods  map[netip.Addr]*machine
}

// Addresses of every lab.
const (
	outsideAddr4, outsideAddr6 = "203.0.113.2", "2001:db8:113::2"
	blockedAddr4, blockedAddr6 = "203.0.113.130", "2001:db8:113::130"
	routerAddr4, routerAddr6   = "192.168.0.1", "2001:db8::fe"
)

// New builds a lab that is removed when t ends.
func New(t T, o Options) *Lab {
	t.Helper()
	if o.VethPrefix == "" {
		o.VethPrefix = "veth"
	}
	if o.Timeout == 0 {
		o.Timeout = 2 * time.Second
	}
	o.Timeout = speed.Scale(o.Timeout)
	l := &Lab{t: t, topology: &topology{options: o, pods: map[netip.Addr]*machine{}}}
	outside := l.machine("outside")
	outside.outside = true
	if err := outside.route(); err != nil {
		t.Fatalf("build the outside: %v", err)
	}
	l.nodes = append(l.nodes, outside)
	l.Outside = &Host{t: t, machine: outside, addrs: parse(outsideAddr4, outsideAddr6)}
	l.Blocked = &Host{t: t, machine: outside, addrs: parse(blockedAddr4, blockedAddr6)}
	l.NodeA = l.Node("node-a", "192.168.0.2", "2001:db8::1", "192.168.1.2", "2001:db8:1::2")
	if o.Cgroups {
		l.NodeA.cgroup = Cgroup(t)
		l.NodeA.inside = Inside(t, l.NodeA.cgroup, l.NodeA.fd)
	}
	l.NodeB = l.Node("node-b", "192.168.0.3", "2001:db8::3")
	return l
}

// For returns the same lab for another test: hosts that it adds are removed when that test
// ends, and failures are reported to that test.
func (l *Lab) For(t T) *Lab {
	return &Lab{
		NodeA: l.NodeA.For(t), NodeB: l.NodeB.For(t),
		Outside: l.Outside.For(t), Blocked: l.Blocked.For(t),
		topology: l.topology, t: t,
	}
}

// Node adds a node. The first address of each family is its primary one.
func (l *Lab) Node(name string, addrs ...string) *Host {
	l.t.Helper()
	h := &Host{t: l.t, machine: l.machine(name), addrs: parse(addrs...)}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.joinNode(h); err != nil {
		l.t.Fatalf("add node %s: %v", name, err)
	}
	l.t.Cleanup(func() { l.removeRoutes(h.machine) })
	return h
}

// Pod adds a pod with these addresses to a node. All hosts reach it.
func (l *Lab) Pod(node *Host, addrs ...string) *Host {
	l.t.Helper()
	if len(addrs) == 0 {
		l.t.Fatalf("a pod needs an address")
	}
	h := &Host{t: l.t, machine: l.machine("pod-" + addrs[0]), addrs: parse(addrs...)}
	h.node = node.machine
	if node.cgroup != "" {
		mountNamespace(l.t, h.fd)
		h.cgroup = below(l.t, node.cgroup, "pod-")
		h.inside = Inside(l.t, h.cgroup, h.fd)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.joinPod(h); err != nil {
		l.t.Fatalf("add pod %s: %v", addrs[0], err)
	}
	l.t.Cleanup(func() { l.removeRoutes(h.machine) })
	return h
}

// machine creates a namespace that is closed when the test ends.
func (l *Lab) machine(name string) *machine {
	l.t.Helper()
	n, err := newNamespace()
	if err != nil {
		l.t.Fatalf("create %s: %v", name, err)
	}
	m := &machine{namespace: n, name: name, world: l.topology}
	l.t.Cleanup(m.closeAll)
	return m
}

// parse panics on an invalid address, which is a mistake in a test.
func parse(addrs ...string) []netip.Addr {
	out := make([]netip.Addr, 0, len(addrs))
	for _, a := range addrs {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

// Analog returns the IPv6 counterpart of an IPv4 address in the lab: the address of the same host, node or Service,
// so that a scenario is written once. It keeps the digits: the counterpart of 10.180.0.1 is fd00:10:180::1.
func Analog(a netip.Addr) netip.Addr {
	switch a.String() {
	case "192.168.0.2":
		return netip.MustParseAddr("2001:db8::1")
	case "192.168.0.3":
		return netip.MustParseAddr("2001:db8::3")
	case "192.168.1.2":
		return netip.MustParseAddr("2001:db8:1::2")
	case "0.0.0.0":
		return netip.IPv6Unspecified()
	case "127.0.0.1":
		return netip.IPv6Loopback()
	}
	b := a.As4()
	if b[0] == 203 && b[1] == 0 && b[2] == 113 {
		return netip.MustParseAddr(fmt.Sprintf("2001:db8:113::%d", b[3]))
	}
	return netip.MustParseAddr(fmt.Sprintf("fd00:%d:%d:%d::%d", b[0], b[1], b[2], b[3]))
}
