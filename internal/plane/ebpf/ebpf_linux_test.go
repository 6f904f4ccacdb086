package ebpf

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

func TestEveryShape(t *testing.T) {
	for name, opt := range planetest.Detectors() {
		t.Run(name+" on the fake", func(t *testing.T) { roundTrip(t, newFake(), opt) })
		t.Run(name+" on the kernel", func(t *testing.T) { roundTrip(t, realKernel(t), opt) })
	}
}

// roundTrip writes every shape, and verifies that afterwards neither the same plane nor a new one plans a step.
func roundTrip(t *testing.T, k Kernel, opt route.Options) {
	opt.ListLocal = true
	change := planetest.Compile(planetest.EveryShape(), opt)
	p := New(k, Options{Packets: noPackets{}})
	apply(t, p, change)
	if plan := p.Plan(route.Change{Table: change.Table}); plan.Steps() != 0 {
		t.Errorf("%d steps without a change:\n%.3000s", plan.Steps(), plan)
	}
	p = New(k, Options{Packets: noPackets{}})
	if err := p.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if plan := p.Plan(change); plan.Steps() != 0 || plan.Kept() < 50 {
		t.Errorf("%d steps after a restart, %d kept, want none:\n%.3000s", plan.Steps(), plan.Kept(), plan)
	}
}

func apply(t *testing.T, p *Plane, change route.Change) {
	t.Helper()
	if err := p.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Plan(change).Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Only frontends that programs can decide exactly get entries.
func TestDecisions(t *testing.T) {
	opt := route.Options{ListLocal: true, Detector: route.DetectorOptions{Kind: route.DetectNodeCIDR}}
	k := newFake()
	apply(t, New(k, Options{Packets: noPackets{}}), planetest.Compile(planetest.EveryShape(), opt))
	all, err := text(k)
	if err != nil {
		t.Fatal(err)
	}
	has := func(want bool, why, line string) {
		t.Helper()
		if strings.Contains(all, line) != want {
			t.Errorf("%s: %q: %t, want %t", why, line, !want, want)
		}
	}
	// ns/svc-2 has no restrictions, no affinity and endpoints on the node b.
	has(true, "pods keep their source", "frontends 172.30.0.2:80/tcp for pods")
	has(true, "the node is its own source", "frontends 172.30.0.2:80/tcp for the node")
	has(true, "the node", "frontends 203.0.113.2:80/tcp for the node")
	has(false, "pods get source NAT", "frontends 203.0.113.2:80/tcp for pods")
	has(false, "pods get source NAT", "frontends 0.0.0.0:30020/tcp for pods")
	has(true, "NodePort", "frontends 0.0.0.0:30020/tcp for the node")
	has(true, "IPv6", "frontends [fd00:172:30::2]:80/tcp for pods")
	has(false, "UDP is for packets, except DNS", "/udp for")
	has(false, "SCTP has no programs", "0.0.0.0:30022/")
	has(false, "no endpoints: the packet plane refuses", "frontends 172.30.0.1:80/")
	// ns/svc-5 has affinity.
	has(false, "only the packet plane remembers clients", "frontends 172.30.0.5:80/tcp")
	// ns/svc-8 is restricted to source ranges.
	has(false, "source ranges", "frontends 203.0.113.8:80/tcp")
	has(true, "source ranges are for load balancers only", "frontends 172.30.0.8:80/tcp")
	has(true, "NodePorts", "node_addrs 192.168.0.2")
	has(false, "pods have 127.0.0.1 themselves", "node_addrs 127.0.0.1")
	if t.Failed() {
		t.Log(all)
	}
}

// The address of each backend on this node is among those that programs search for; of a pool without any, none is.
func TestNotLocal(t *testing.T) {
	k := newFake()
	apply(t, New(k, Options{Packets: noPackets{}}),
		planetest.Compile(planetest.EveryShape(), route.Options{ListLocal: true}))
	state, err := k.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	here := map[string][]netip.Addr{}
	for key := range state {
		if key.Table == bpf.Members && key.Data[32:34] == "\x00\x00" { // the port
			here[key.Data[:16]] = append(here[key.Data[:16]], netip.AddrFrom16([16]byte([]byte(key.Data[16:32]))))
		}
	}
	with, without := 0, 0
	for key, value := range state {
		if key.Table != bpf.Frontends {
			continue
		}
		local := here[value[:16]]
		if got, want := binary.NativeEndian.Uint64([]byte(value[24:])), bpf.NotLocal(local); got != want {
			t.Errorf("%s: not_local is %x, want %x, as %s are on this node", key, got, want, local)
		}
		if len(local) > 0 {
			with++
		} else {
			without++
		}
	}
	if with == 0 || without == 0 {
		t.Errorf("%d frontends with backends on this node, %d without, want some of both", with, without)
	}
	if got := bpf.NotLocal(addrs("10.1.0.67", "fd00::1")); got != ^uint64(1<<3|1<<1) {
		t.Errorf("NotLocal returns %x", got)
	}
}
