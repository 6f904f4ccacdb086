//go:build linux

package hostile

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/lab"
)

// neighbours are hosts that send packets for 127.0.0.0/8 while NodePorts are served there, and
// while the daemon is killed, reconfigured, stopped and cleaned up.
func neighbours() []attack {
	return []attack{{
		name: "packets of neighbours for 127.0.0.0/8", full: []plane{iptablesNFT},
		limits: limits{cpu: 1},
		flags:  []string{"--nodeport-addresses=localhost,192.168.0.0/16,2001:db8::/32"},
		before: func(s *attackTest) { s.sendToLoopback() },
		during: func(ctx context.Context, s *attackTest) error {
			for ctx.Err() == nil {
				to := at("127.0.0.1", fixedNodePort)
				if r := s.lab.NodeA.Try(lab.Probe{Protocol: lab.TCP, To: to}); r.Outcome != lab.Answered {
					return fmt.Errorf("the node itself does not reach %s: %s", to, r)
				}
				s.pause(ctx, 100*time.Millisecond)
			}
			return nil
		},
		after: restartWithLoopback,
	}}
}

// restartWithLoopback stops the daemon in every way and starts it with and without NodePorts on
// 127.0.0.1, while the neighbours keep sending.
func restartWithLoopback(s *attackTest) {
	s.Helper()
	with := s.args
	without := append(slices.Clip(s.args[:len(s.args)-1]), "--nodeport-addresses=primary")
	for _, step := range []struct {
		end  syscall.Signal
		once string // run once before the next start
		args []string
	}{
		{syscall.SIGKILL, "", without},
		{syscall.SIGTERM, "", with},
		{syscall.SIGKILL, "", with},
		{syscall.SIGTERM, "--cleanup", with},
		{syscall.SIGKILL, "--cleanup", with},
		{syscall.SIGTERM, "--init-only", with},
		{syscall.SIGTERM, "", without},
	} {
		s.daemon.stop(step.end)
		s.waitForRounds()
		if step.once != "" {
			s.runSluice(append(slices.Clip(with), step.once)...)
			s.waitForRounds()
		}
		s.args = step.args
		s.launch()
		s.change()
	}
	for _, stop := range s.stops {
		stop()
	}
	s.daemon.stop(syscall.SIGTERM)
	var value []byte
	s.must(s.lab.NodeA.Do(func() (err error) {
		value, err = os.ReadFile("/proc/sys/net/ipv4/conf/all/route_localnet")
		return err
	}))
	if got := strings.TrimSpace(string(value)); got != "0" {
		s.Errorf("route_localnet is %s after the daemon stopped without NodePorts on 127.0.0.1, want the original 0", got)
	}
	s.launch()
	s.change()
}

// arrivals counts packets from neighbours on the last hook before sockets. Replies to
// connections of the node are not counted as loopback.
const arrivals = `table inet arrivals {
	counter loopback { }
	counter ordinary { }
	chain input {
		type filter hook input priority 2147483647;
		iifname != "lo" udp dport 5353 counter name ordinary
		iifname != "lo" ct direction != reply ip daddr 127.0.0.0/8 counter name loopback
	}
}
`

// sendToLoopback opens listeners on loopback addresses and makes neighbours send to them until the attack ends.
func (s *attackTest) sendToLoopback() {
	s.Helper()
	node := s.lab.NodeA
	node.Nft(arrivals)
	s.tables = node.MustRun("nft", "list", "tables")
	servers := []*lab.Server{node.Serve(lab.UDP, 5353), node.Serve(lab.TCP, 5354)}
	ctx, cancel := context.WithCancel(s.Context())
	done := make(chan struct{})
	senders := []sender{
		s.sender(s.lab.Outside, s.lab.Outside.Interface(), node.Interface()),
		s.sender(s.client, "eth0", s.client.Interface()),
	}
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			for _, from := range senders {
				for _, packet := range loopbackPackets() {
					_ = unix.Sendto(from.fd, packet, 0, &from.to) // checked by the counters
				}
			}
			s.rounds.Add(1)
			s.pause(ctx, time.Millisecond)
		}
		for _, from := range senders {
			_ = unix.Close(from.fd)
		}
	}()
	end := func() {
		cancel()
		<-done
	}
	s.Cleanup(end)
	s.stops = append(s.stops, sync.OnceFunc(func() {
		end()
		for _, server := range servers {
			server.Close()
		}
		out := node.MustRun("nft", "list", "counters")
		if strings.Count(out, "packets 0 ") != 1 || !strings.Contains(out, "counter loopback {\n\t\tpackets 0 ") {
			s.Errorf("packets of neighbours for 127.0.0.0/8 arrived, or their ordinary packets did not:\n%s", out)
		}
		node.MustRun("nft", "delete", "table", "inet", "arrivals")
	}))
}

// waitForRounds returns when neighbours have sent all packets ten more times.
func (s *attackTest) waitForRounds() {
	s.Helper()
	want := s.rounds.Load() + 10
	s.eventually(changeTimeout(), func() error {
		if n := s.rounds.Load(); n < want {
			return fmt.Errorf("neighbours have sent all packets %d times, want %d", n, want)
		}
		return nil
	})
}

// sender is a packet socket, and the interface of node A that it sends to.
type sender struct {
	fd int
	to unix.SockaddrLinklayer
}

// sender opens a packet socket on interface out of a host, for packets to interface in of node A.
func (s *attackTest) sender(from *lab.Host, out, in string) sender {
	s.Helper()
	made := sender{to: unix.SockaddrLinklayer{Protocol: unix.ETH_P_IP>>8 | unix.ETH_P_IP&0xff<<8, Halen: 6}}
	s.must(s.lab.NodeA.Do(func() error {
		link, err := net.InterfaceByName(in)
		if err == nil {
			copy(made.to.Addr[:], link.HardwareAddr)
		}
		return err
	}))
	s.must(from.Do(func() error {
		link, err := net.InterfaceByName(out)
		if err == nil {
			made.to.Ifindex = link.Index
			made.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		}
		return err
	}))
	return made
}

// loopbackPackets are datagrams and SYNs for loopback addresses, from ordinary and loopback
// addresses, and one datagram to an ordinary address, which may arrive.
func loopbackPackets() [][]byte {
	packets := [][]byte{lab.Segment{Protocol: lab.UDP, Src: at("192.168.0.1", 4000), Dst: at(nodeAddr, 5353)}.Packet()}
	for _, from := range []string{"192.168.0.1", "10.180.0.9", "127.0.0.1", "127.1.2.3"} {
		src := netip.AddrPortFrom(netip.MustParseAddr(from), 4001)
		for _, to := range []string{"127.0.0.1", "127.9.9.9"} {
			packets = append(packets,
				lab.Segment{Protocol: lab.UDP, Src: src, Dst: at(to, 5353), Payload: []byte("in")}.Packet(),
				lab.Segment{Protocol: lab.TCP, Src: src, Dst: at(to, 5354), Flags: lab.SYN}.Packet(),
				lab.Segment{Protocol: lab.TCP, Src: src, Dst: at(to, fixedNodePort), Flags: lab.SYN}.Packet(),
			)
		}
	}
	return packets
}
