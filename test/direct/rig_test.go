//go:build linux

package direct

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

const (
	timeout = 20 * time.Second
	pace    = 100 * time.Millisecond // of messages on each connection

	vip4, vip6 = "198.51.100.80", "2001:db8:51::80"
)

type object = harness.Object

// rig has three nodes behind the outside host, which is a router with ECMP, and clients on that.
type rig struct {
	*testing.T
	lab     *lab.Lab
	nodes   [3]*lab.Host
	daemons [3]*harness.Process
	pods    []*lab.Host
	at      map[netip.Addr]int // the index of the node of each pod, by its addresses
	dir     string

	annotation string      // empty: there is none
	flags      [3][]string // of the daemons
	spec       object      // of the Service: more fields
	masquerade bool        // a pod may see another address than that of the client
}

// newRig makes a rig with a pod on each of some nodes.
func newRig(t *testing.T, pods ...int) *rig {
	t.Helper()
	l := lab.New(t, lab.Options{Timeout: 5 * time.Second, Cgroups: lab.HasCgroups()})
	r := &rig{T: t, lab: l, at: map[netip.Addr]int{}, annotation: "direct"}
	r.nodes = [3]*lab.Host{l.NodeA, l.NodeB, l.Node("node-c", "192.168.0.4", "2001:db8::4")}
	for _, n := range r.nodes {
		n.MustRun("ip", "route", "replace", "default", "via", "192.168.0.1", "dev", "eth0", "onlink")
		n.MustRun("ip", "-6", "route", "replace", "default", "via", "2001:db8::fe", "dev", "eth0", "onlink")
	}
	for _, family := range []string{"ipv4", "ipv6"} {
		l.Outside.MustRun("sysctl", "-qw", "net."+family+".fib_multipath_hash_policy=1")
	}
	r.dir = t.TempDir()
	r.enterAt(0, 1, 2)
	for _, node := range pods {
		r.pod(node)
	}
	return r
}

// begin starts all daemons, with the pods on some nodes as endpoints, and waits until they agree.
func (r *rig) begin(nodes ...int) (sum string) {
	r.Helper()
	r.apply(nodes...)
	for i := range r.nodes {
		r.start(i)
	}
	return r.agree("", 0, 1, 2)
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// enterAt makes the router divide connections among these nodes.
func (r *rig) enterAt(nodes ...int) {
	r.Helper()
	for _, vip := range []string{vip4, vip6} {
		a := netip.MustParseAddr(vip)
		args := []string{"ip", "route", "replace", netip.PrefixFrom(a, a.BitLen()).String()}
		for _, i := range nodes {
			args = append(args, "nexthop", "via", r.nodes[i].Addr(a).String(), "dev", "br0", "onlink")
		}
		r.lab.Outside.MustRun(args...)
	}
}

// pod adds a pod to a node.
func (r *rig) pod(node int) {
	r.Helper()
	a := harness.PodAddr(len(r.pods))
	pod := r.lab.Pod(r.nodes[node], a.String(), lab.Analog(a).String())
	pod.Serve(lab.TCP, 80)
	pod.Serve(lab.UDP, 80)
	r.pods = append(r.pods, pod)
	r.at[a], r.at[lab.Analog(a)] = node, node
}

// apply writes the Service with the pods on some nodes as its endpoints.
func (r *rig) apply(nodes ...int) {
	r.Helper()
	var pods []int
	for i, pod := range r.pods {
		if slices.Contains(nodes, r.at[pod.Addr4()]) {
			pods = append(pods, i)
		}
	}
	r.applyPods(pods...)
}

// applyPods writes the Service with these pods as its endpoints, and the Nodes.
func (r *rig) applyPods(pods ...int) {
	r.Helper()
	ports := []object{{"name": "tcp", "port": 80}, {"name": "udp", "port": 80, "protocol": "UDP"}}
	web := harness.Service("web", object{
		"type": "LoadBalancer", "clusterIP": "172.30.0.80", "clusterIPs": []string{"172.30.0.80", "fd00:172:30::80"},
		"ports": ports,
	})
	maps.Copy(web["spec"].(object), r.spec)
	if r.annotation != "" {
		web["metadata"].(object)["annotations"] = object{"sluice-proxy.github.io/external": r.annotation}
	}
	web["status"] = object{"loadBalancer": object{"ingress": []object{{"ip": vip4}, {"ip": vip6}}}}
	objects := []object{web}
	for _, family := range []string{"IPv4", "IPv6"} {
		sl := harness.EndpointSlice("web", family, ports)
		var endpoints []object
		for _, i := range pods {
			pod := r.pods[i]
			a := pod.Addr4()
			if family == "IPv6" {
				a = pod.Addr6()
			}
			endpoints = append(endpoints, object{"addresses": []string{a.String()}, "nodeName": r.nodes[r.at[a]].Name()})
		}
		sl["endpoints"] = endpoints
		objects = append(objects, sl)
	}
	for _, n := range r.nodes {
		var addresses []object
		for _, a := range []netip.Addr{n.Addr4(), n.Addr6()} {
			addresses = append(addresses, object{"type": "InternalIP", "address": a.String()})
		}
		objects = append(objects, object{
			"apiVersion": "v1", "kind": "Node", "metadata": object{"name": n.Name()}, "status": object{"addresses": addresses},
		})
	}
	r.must(harness.Replace(filepath.Join(r.dir, "all.json"), harness.Manifest(objects)))
}

// web is the address of the Service.
func web() netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(vip4), 80) }

// start starts the daemon of a node.
func (r *rig) start(node int) {
	r.Helper()
	path, err := harness.Program()
	r.must(err)
	n := r.nodes[node]
	r.daemons[node], err = harness.Start(n, exec.Command(path, append([]string{
		"--manifests=" + r.dir, "--hostname-override=" + n.Name(), "--proxy-mode=nftables",
		"--cluster-cidr=10.180.0.0/16,fd00:10:180::/48", "--reload-jitter=0",
	}, r.flags[node]...)...))
	r.must(err)
	r.Cleanup(func() {
		if r.Failed() {
			r.Logf("log of %s:\n%s", n.Name(), r.daemons[node].Log.End())
		}
	})
}

func (r *rig) signal(node int, s syscall.Signal) {
	r.Helper()
	r.must(r.daemons[node].Signal(s))
}

// checksum returns what a node agrees on, once it reaches all others.
func (r *rig) checksum(node int) (string, error) {
	if err := r.daemons[node].Alive(); err != nil {
		return "", err
	}
	var s inspect.Status
	if err := admin.Dial(admin.Options{NetNS: r.nodes[node].NetNSFD()}).Get(r.Context(), "/status", nil, &s); err != nil {
		return "", err
	}
	if s.Direct == nil || s.Direct.Ports != 4 || len(s.Direct.Peers) != 4 || !s.Lag.Since.IsZero() {
		return "", fmt.Errorf("node %d is not ready: %+v", node, s.Direct)
	}
	for _, p := range s.Direct.Peers {
		if p.Why != "" {
			return "", fmt.Errorf("node %d does not reach %+v", node, p)
		}
	}
	return s.Direct.Checksum, nil
}

// agree waits until nodes have the same checksum, which is another than before, and returns it.
func (r *rig) agree(before string, nodes ...int) (sum string) {
	r.Helper()
	harness.Eventually(r, timeout, func() error {
		sum = ""
		for _, i := range nodes {
			now, err := r.checksum(i)
			switch {
			case err != nil:
				return err
			case now == before, sum != "" && now != sum:
				return fmt.Errorf("node %d has checksum %s, before it was %s, and others have %s", i, now, before, sum)
			}
			sum = now
		}
		return nil
	})
	return sum
}

// flows are connections or UDP flows of clients outside, with a message each pace.
type flows struct {
	*rig
	stop func()
	wait sync.WaitGroup

	mu       sync.Mutex
	open     []*lab.Flow
	locals   []netip.AddrPort // the addresses of the clients by flow
	backends []netip.AddrPort
	messages []int
	broken   []error
	ended    map[int]bool // flows that are broken
}

// flows opens flows, and verifies that each pod sees the address of the client.
func (r *rig) flows(n int, protocol lab.Protocol, vip string) *flows {
	r.Helper()
	f := &flows{rig: r, messages: make([]int, n), ended: map[int]bool{}}
	for i := range n {
		flow, res := r.lab.Outside.Open(lab.Probe{Protocol: protocol, To: netip.AddrPortFrom(netip.MustParseAddr(vip), 80)})
		if flow != nil {
			if res = flow.Ask(nil); res.Outcome == lab.Answered && res.Masqueraded() && !r.masquerade {
				res.Err = errors.New("masqueraded")
			}
		}
		if res.Outcome != lab.Answered || res.Err != nil {
			r.Fatalf("flow %d to %s: %s", i, vip, res)
		}
		f.open, f.backends, f.locals = append(f.open, flow), append(f.backends, res.Backend), append(f.locals, res.Local)
	}
	over := make(chan struct{})
	f.stop = sync.OnceFunc(func() { close(over) })
	for i := range n {
		f.wait.Go(func() {
			for f.ask(i) {
				select {
				case <-over:
					return
				case <-time.After(pace):
				}
			}
		})
	}
	r.Cleanup(func() { f.end() })
	return f
}

func (f *flows) ask(i int) bool {
	res := f.open[i].AskWithin([]byte("ping"), 10*time.Second)
	f.mu.Lock()
	defer f.mu.Unlock()
	if res.Outcome != lab.Answered || !res.Echoed || res.Backend != f.backends[i] {
		f.broken = append(f.broken, fmt.Errorf("flow %d with %s: %s", i, f.backends[i], res))
		f.ended[i] = true
		return false
	}
	f.messages[i]++
	return true
}

// round waits until each flow that is not broken has sent two more messages, and returns how many are broken.
func (f *flows) round() int {
	f.Helper()
	f.mu.Lock()
	before := slices.Clone(f.messages)
	f.mu.Unlock()
	harness.Eventually(f, timeout, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		done := 0
		for i := range before {
			if f.messages[i] >= before[i]+2 {
				done++
			}
		}
		if done+len(f.broken) < len(before) {
			return fmt.Errorf("%d of %d flows have sent two messages, %d are broken", done, len(before), len(f.broken))
		}
		return nil
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.broken)
}

// survive verifies that no flow breaks.
func (f *flows) survive(what string) {
	f.Helper()
	if n := f.round(); n > 0 {
		f.Fatalf("%s: %d of %d flows broke: %v", what, n, len(f.open), errors.Join(f.broken[:min(n, 5)]...))
	}
	f.Logf("%s: 0 of %d flows broke", what, len(f.open))
}

func (f *flows) end() {
	f.stop()
	f.wait.Wait()
	for _, flow := range f.open {
		flow.Close()
	}
	f.open = nil
}

// disagree starts all daemons, and makes each know another set of nodes with backends.
func (r *rig) disagree() {
	r.Helper()
	sum := r.begin(0, 1)
	r.masquerade = true
	r.signal(0, syscall.SIGSTOP)
	r.apply(1, 2)
	sum = r.agree(sum, 1, 2)
	r.signal(1, syscall.SIGSTOP)
	r.apply(0, 2)
	r.agree(sum, 2)
}
