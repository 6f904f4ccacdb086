package bpf

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// BenchmarkPrograms reports how long each program runs, while the node connects to a Service.
func BenchmarkPrograms(b *testing.B) {
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = stats.Close() }() // nothing was written to it
	n := newNode(b)
	serve(b, n.opt.NetNS, "127.0.0.1:8080")
	n.write(service("10.96.0.1:80", 6, OfNode, "127.0.0.1:8080")...)
	names, err := n.conn.names("links")
	if err != nil {
		b.Fatal(err)
	}
	for range b.N {
		n.run(func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			return errors.Join(unix.Connect(fd, &unix.SockaddrInet4{Addr: [4]byte{10, 96, 0, 1}, Port: 80}), unix.Close(fd))
		})
	}
	for program := range (Options{GuardNodePorts: true}).points() {
		l, err := n.conn.linkOf(names, program)
		if err != nil {
			b.Fatal(err)
		}
		info, err := l.Info()
		if err != nil {
			b.Fatal(err)
		}
		p, err := ebpf.NewProgramFromID(info.Program)
		if err != nil {
			b.Fatal(err)
		}
		s, err := p.Stats()
		if err != nil {
			b.Fatal(err)
		}
		if s.RunCount > 0 {
			b.ReportMetric(float64(s.Runtime.Nanoseconds())/float64(s.RunCount), program+"-ns")
		}
		_, _ = p.Close(), l.Close() // they were only read from
	}
}
