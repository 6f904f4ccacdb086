//go:build linux

package traffic

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/plane/nftables"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
	"github.com/sluice-proxy/sluice/test/lab"
)

// BenchmarkConnect connects to a Service in turn on two nodes, from a pod to a pod of the same node. On one of them
// rules of mode nftables count so many times, on the other one not at all. Then the nodes change roles. It reports the
// medians, and quantiles of the ratio of two connections, one after the other.
func BenchmarkConnect(b *testing.B) {
	for _, times := range []int{0, 1, 10} {
		b.Run(fmt.Sprint(times, " times"), func(b *testing.B) {
			l := lab.New(b, lab.Options{})
			nodes := []*benchNode{newBenchNode(b, l, l.NodeA, 0), newBenchNode(b, l, l.NodeB, 1)}
			var without, with []time.Duration
			for n := 0; b.Loop(); n++ {
				if n%1024 == 0 {
					nodes[n/1024%2].count(0)
					nodes[1-n/1024%2].count(times)
				}
				plain, counted := nodes[n/1024%2], nodes[1-n/1024%2]
				if n%2 == 0 {
					without = append(without, plain.connect())
				}
				with = append(with, counted.connect())
				if n%2 == 1 {
					without = append(without, plain.connect())
				}
			}
			ratios := make([]float64, len(with))
			for i := range with {
				ratios[i] = float64(with[i]) / float64(without[i])
			}
			slices.Sort(ratios)
			for _, q := range []int{25, 50, 75} {
				b.ReportMetric(ratios[len(ratios)*q/100], fmt.Sprintf("ratio-p%d", q))
			}
			slices.Sort(with)
			slices.Sort(without)
			b.ReportMetric(float64(without[len(without)/2]), "without-ns")
			b.ReportMetric(float64(with[len(with)/2]), "with-ns")
		})
	}
}

// benchNode is a node with a client, and a pod that serves.
type benchNode struct {
	*testing.B
	*lab.Host
	client  *lab.Host
	sockets []int
	to      unix.SockaddrInet4
	rules   []string // of postrouting
}

func newBenchNode(b *testing.B, l *lab.Lab, on *lab.Host, i byte) *benchNode {
	b.Helper()
	n := &benchNode{B: b, Host: on, to: unix.SockaddrInet4{Port: 80, Addr: [4]byte{172, 30, 0, 80}}}
	addr := netip.AddrFrom4([4]byte{10, 180, i, 1})
	n.client = l.Pod(on, netip.AddrFrom4([4]byte{10, 180, i, 9}).String())
	l.Pod(on, addr.String()).Serve(lab.TCP, 8080)
	conn, err := nft.Open(nft.Options{NetNS: on.NetNSFD()})
	if err != nil {
		b.Fatal(err)
	}
	s := cluster.NewStore()
	s.SetNode(planetest.NewNode("10.180.0.0/16"))
	name := cluster.Name{Namespace: "shop", Name: "web"}
	s.SetService(&cluster.Service{
		Name: name, ClusterIPs: planetest.Addrs("172.30.0.80"), Ports: []cluster.ServicePort{{Protocol: lab.TCP, Port: 80}},
	})
	s.SetSlice(&cluster.Slice{
		Name: name, Service: name, Ports: []cluster.SlicePort{{Protocol: lab.TCP, Port: 8080}},
		Endpoints: []cluster.Endpoint{planetest.Endpoint(addr.String(), "a")},
	})
	planetest.Load(b, nftables.New(conn, nftables.Options{Families: route.Families(), Mark: 0x4000}),
		planetest.Compile(s, route.Options{}))
	_ = conn.Close()
	for line := range strings.Lines(on.MustRun("nft", "list", "chain", "ip", "sluice", "postrouting")) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "ct ") || strings.HasPrefix(line, "meta ") {
			n.rules = append(n.rules, line)
		}
	}
	return n
}

// count makes rules count each connection so many times.
func (n *benchNode) count(times int) {
	jump := " jump count"
	if !strings.HasSuffix(n.rules[0], jump) {
		n.Fatalf("the first rule is %q", n.rules[0])
	}
	rules := slices.Clone(n.rules)
	rules[0] = strings.TrimSuffix(rules[0], jump)
	if times > 0 {
		rules[0] += jump
	}
	for range times - 1 {
		rules = slices.Insert(rules, 1, "ct status dnat"+jump)
	}
	n.Nft("flush chain ip sluice postrouting\nadd rule ip sluice postrouting " +
		strings.Join(rules, "\nadd rule ip sluice postrouting ") + "\n")
}

// connect returns how long a call of connect takes.
func (n *benchNode) connect() time.Duration {
	if len(n.sockets) == 0 {
		n.open()
	}
	fd := n.sockets[0]
	n.sockets = n.sockets[1:]
	began := time.Now()
	err := unix.Connect(fd, &n.to)
	took := time.Since(began)
	if err := errors.Join(err, unix.Close(fd)); err != nil {
		n.Fatal(err)
	}
	return took
}

// open opens sockets that are reset when they are closed.
func (n *benchNode) open() {
	if err := n.client.Do(func() error {
		for range 256 {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			n.sockets = append(n.sockets, fd)
			if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		n.Fatal(err)
	}
}
