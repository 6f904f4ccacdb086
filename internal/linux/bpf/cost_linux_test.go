package bpf

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/lab"
)

// BenchmarkPrograms reports how long each program runs, and how often for a connection, while the node and a pod
// connect to a Service, and straight to its backend.
func BenchmarkPrograms(b *testing.B) {
	const vip, backend = "10.96.0.1:80", "10.1.0.9:8080"
	for _, c := range []struct {
		name, to  string
		clients   Clients
		exempting Exempting
	}{
		{"node", vip, OfNode, 0},
		{"node direct", backend, OfNode, 0},
		{"pod", vip, OfPods, 0},
		{"pod direct", backend, OfPods, 0},
		{"node, one exempt level", vip, OfNode, ExemptLevel(2)},
		{"node, all exempt levels", vip, OfNode, ExemptAny},
	} {
		b.Run(c.name, func(b *testing.B) {
			stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = stats.Close() }() // nothing was written to it
			n := newNode(b)
			n.conn = n.reopen(func(o *Options) { o.Exempting = c.exempting })
			netns, inside := n.opt.NetNS, n.inside
			if c.clients == OfPods {
				netns = kerneltest.Namespace(b)
				inside = lab.Inside(b, n.opt.Cgroup, netns)
			}
			address4(b, netns, "10.1.0.9/32")
			serve(b, netns, backend)
			n.write(service(vip, 6, c.clients, backend)...)
			n.know(netns, "10.1.0.9")
			connect := func(to string) {
				if err := inside(func() error { return connectOnce(to) }); err != nil {
					b.Fatal(err)
				}
			}
			before := n.cost()
			for range b.N {
				connect(c.to)
			}
			for program, after := range n.cost() {
				runs, ns := after.RunCount-before[program].RunCount, after.Runtime-before[program].Runtime
				if runs > 0 {
					b.ReportMetric(float64(ns.Nanoseconds())/float64(runs), program+"-ns")
					b.ReportMetric(float64(runs)/float64(b.N), program+"-runs")
				}
			}
		})
	}
}

// connectOnce opens a connection, and resets it.
func connectOnce(to string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return errors.Join(unix.Connect(fd, lab.Sockaddr(netip.MustParseAddrPort(to))),
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}), unix.Close(fd))
}

// cost returns the run count and run time of each program.
func (n *node) cost() map[string]*ebpf.ProgramStats {
	n.t.Helper()
	all := map[string]*ebpf.ProgramStats{}
	for program := range n.conn.points() {
		all[program] = n.costOf(program)
	}
	return all
}

func (n *node) costOf(program string) *ebpf.ProgramStats {
	n.t.Helper()
	l, err := n.conn.linkOf(program)
	if err != nil {
		n.t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // it was only read from
	info, err := l.Info()
	if err != nil {
		n.t.Fatal(err)
	}
	p, err := ebpf.NewProgramFromID(info.Program)
	if err != nil {
		n.t.Fatal(err)
	}
	defer func() { _ = p.Close() }() // it was only read from
	s, err := p.Stats()
	if err != nil {
		n.t.Fatal(err)
	}
	return s
}
