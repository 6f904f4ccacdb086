//go:build linux

package conformance

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/test/lab"
)

// env is the environment of one run of a scenario: the lab, the proxy and the state of the steps.
type env struct {
	translator
	t        testing.TB
	world    *world
	lab      *lab.Lab // of the world, for this variant
	before   []string // stateOf node A before the first start
	altered  string   // the leftovers of a step; see alters
	settings settings
	objects  *objects
	proxy    *proxyUnderTest
	hosts    map[string]*lab.Host // pods by address
	found    map[string]bool      // names of pods for whose sockets the plane decides
	decided  uint64               // connections at sockets, before the ones of a step
	flows    map[string]*lab.Flow
	answered map[string]netip.AddrPort // the backend that answered last, by flow or client
	tap      *lab.Tap
	timeout  time.Duration // for an expected event
	probers  []*prober     // of the running uninterrupted steps, the innermost last

	nodeAddrs []netip.Addr // of node A: the possible sources of masqueraded connections
}

// awaitPod waits until the plane has found a pod on node A, if it decides for the sockets of pods.
func (e *env) awaitPod(h *lab.Host) error {
	find, kind := e.proxy.plane.Found, e.proxy.options.Detector.Kind
	isPod := h != e.lab.NodeA && h.Cgroup() != "" && kind != route.DetectBridge && kind != route.DetectInterfacePrefix
	if find == nil || !isPod || e.found[h.Name()] || e.proxy.skipExplain { // the plane was removed
		return nil
	}
	err := eventually(changeTimeout, func() error { return find(e.lab.NodeA, h) })
	e.found[h.Name()] = err == nil
	return err
}

// change applies documents and removes objects. It first starts pods for all new endpoints.
func (e *env) change(docs, gone []string) error {
	for _, text := range docs {
		d, err := e.objects.parse(text)
		if err == nil {
			err = e.serveEndpoints(d)
		}
		if err != nil {
			return fmt.Errorf("%w in:\n%s", err, text)
		}
	}
	for _, text := range docs {
		if err := e.objects.set(text); err != nil {
			return err
		}
	}
	for _, key := range gone {
		if err := e.objects.remove(key); err != nil {
			return err
		}
	}
	return nil
}

// serveEndpoints starts a pod for each endpoint of a slice, on its node.
func (e *env) serveEndpoints(d document) error {
	if d.slice == nil {
		return nil
	}
	for _, ep := range d.slice.Endpoints {
		if len(ep.Addresses) == 0 {
			continue
		}
		a, err := netip.ParseAddr(ep.Addresses[0])
		if err != nil {
			continue // invalid on purpose: the proxy must reject it
		}
		node := "B"
		if ep.NodeName != nil && *ep.NodeName == "node-a" {
			node = "A"
		}
		h := e.podAt(a, node)
		for _, p := range d.slice.Ports {
			if p.Port == nil || *p.Port == 0 {
				continue
			}
			protocol := cluster.TCP
			if p.Protocol != nil {
				if protocol, err = protocolOf(string(*p.Protocol)); err != nil {
					return err
				}
			}
			e.serve(h, protocol, uint16(*p.Port))
		}
	}
	return nil
}

// serve starts a server unless it is already running.
func (e *env) serve(h *lab.Host, protocol lab.Protocol, port uint16) {
	if s := (server{h.Name(), protocol, port}); !e.world.serving[s] {
		e.world.serving[s] = true
		h.For(e.owner()).Serve(protocol, port)
	}
}

// pod starts the servers of one line of scenario.pods.
func (e *env) pod(text string) error {
	words := strings.Fields(text)
	name, rest := words[0], words[1:]
	if len(rest) > 0 && len(rest[0]) == 1 {
		name, rest = name+"@"+rest[0], rest[1:]
	}
	h, err := e.host(name)
	if err != nil {
		return err
	}
	for _, w := range rest {
		port, protocol, err := portOf(w)
		if err != nil {
			return err
		}
		e.serve(h, protocol, port)
	}
	return nil
}

// host returns a host by its name: "node", "node-b", "outside", "blocked", or the address of a pod. If no host has the
// address, it creates a pod on node A, or on the named node: "10.180.1.9@B".
func (e *env) host(name string) (*lab.Host, error) {
	switch name {
	case "node":
		return e.lab.NodeA, nil
	case "node-b":
		return e.lab.NodeB, nil
	case "outside":
		return e.lab.Outside, nil
	case "blocked":
		return e.lab.Blocked, nil
	}
	text, node, _ := strings.Cut(name, "@")
	a, err := netip.ParseAddr(e.text(text))
	if err != nil {
		return nil, fmt.Errorf("unknown host %q", name)
	}
	return e.podAt(a, node), nil
}

// podAt returns the host with an address. If there is none, it creates a pod on the node.
func (e *env) podAt(a netip.Addr, node string) *lab.Host {
	if h := e.hosts[a.String()]; h != nil {
		return h
	}
	for _, h := range []*lab.Host{e.lab.NodeA, e.lab.NodeB, e.lab.Outside, e.lab.Blocked} {
		if slices.Contains(h.Addrs(), a) {
			return h
		}
	}
	known := e.world.hosts[a.String()]
	if known == nil {
		known = e.addPod(a, node)
	}
	h := known.For(e.t)
	for _, a := range h.Addrs() {
		e.hosts[a.String()] = h
	}
	return h
}

func (e *env) addPod(a netip.Addr, node string) *lab.Host {
	on := e.lab.NodeA
	if node == "B" {
		on = e.lab.NodeB
	}
	addrs := []string{a.String()}
	if a.Is4() {
		addrs = append(addrs, lab.Analog(a).String())
	}
	h := e.world.lab.For(e.owner()).Pod(on, addrs...)
	e.world.remote[h.Name()] = on == e.lab.NodeB
	for _, text := range addrs {
		e.world.hosts[text] = h
	}
	return h
}

// outsideTap returns the packet capture of the outside host.
func (e *env) outsideTap() *lab.Tap {
	if e.tap == nil {
		e.tap = e.lab.Outside.Tap()
	}
	return e.tap
}

func (e *env) closeFlows() {
	for _, f := range e.flows {
		f.Close()
	}
	clear(e.flows)
}

// target parses "172.30.0.41:80" (TCP) or "172.30.0.41:53/udp".
func (e *env) target(text string) (netip.AddrPort, lab.Protocol, error) {
	text = e.text(text)
	protocol := lab.TCP
	var err error
	if i := strings.LastIndex(text, "/"); i >= 0 {
		if protocol, err = protocolOf(text[i+1:]); err != nil {
			return netip.AddrPort{}, 0, err
		}
		text = text[:i]
	}
	to, err := netip.ParseAddrPort(text)
	if err != nil {
		return to, 0, fmt.Errorf("read target: %w", err)
	}
	return to, protocol, nil
}

func portOf(text string) (uint16, lab.Protocol, error) {
	number, name, found := strings.Cut(text, "/")
	if !found {
		name = "tcp"
	}
	port, err := strconv.ParseUint(number, 10, 16)
	if err != nil {
		return 0, 0, fmt.Errorf("read port: %w", err)
	}
	protocol, err := protocolOf(name)
	return uint16(port), protocol, err
}

func protocolOf(name string) (lab.Protocol, error) {
	for _, p := range []lab.Protocol{lab.TCP, lab.UDP, lab.SCTP} {
		if p.String() == strings.ToLower(name) {
			return p, nil
		}
	}
	return 0, fmt.Errorf("unknown protocol %q", name)
}
