//go:build linux

package endurance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/lab"
)

// Ports of node A that a neighbour, node B, attacks.
const (
	privatePort = 7777 // on 127.0.0.1 alone
	publicPort  = 7778 // on 192.168.0.2, for sources in 127.0.0.0/8
)

// attack sends packets of a neighbour to and from 127.0.0.0/8 until it ends, and counts those that arrive.
type attack struct {
	w          *testEnv
	arrived    atomic.Int64
	controlled atomic.Int64 // ordinary packets that arrived
	sent       atomic.Int64
	tap        *lab.Tap
	ctx        context.Context
	end        func()
	done       sync.WaitGroup
}

// startAttack starts an attack, and listeners on node A that count its packets.
func (w *testEnv) startAttack() *attack {
	w.Helper()
	w.lab.NodeA.Sysctl("net/ipv4/tcp_synack_retries", "0") // every answer is to a segment that just arrived
	ctx, cancel := context.WithCancel(w.Context())
	a := &attack{w: w, tap: w.lab.NodeB.Tap(), ctx: ctx, end: cancel}
	var closers []func() error
	w.must(w.lab.NodeA.Do(func() error {
		for _, at := range []string{fmt.Sprintf("127.0.0.1:%d", privatePort), fmt.Sprintf("192.168.0.2:%d", publicPort)} {
			udp, err := net.ListenPacket("udp4", at)
			if err != nil {
				return err
			}
			closers = append(closers, udp.Close)
			a.done.Go(func() { a.count(udp) })
		}
		tcp, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", privatePort))
		if err == nil {
			closers = append(closers, tcp.Close)
		}
		return err
	}))
	w.Cleanup(func() {
		cancel()
		for _, c := range closers {
			_ = c()
		}
		a.done.Wait()
	})
	a.done.Go(a.send)
	return a
}

func (a *attack) count(udp net.PacketConn) {
	b := make([]byte, 100)
	for {
		n, _, err := udp.ReadFrom(b)
		switch {
		case err != nil:
			return
		case string(b[:n]) == "control":
			a.controlled.Add(1)
		default:
			a.arrived.Add(1)
		}
	}
}

// packets are the packets of the neighbour. The last one may arrive.
func packets() [][]byte {
	const neighbour, spoofed, private, node = "192.168.0.3", "127.0.0.9", "127.0.0.1", "192.168.0.2"
	packet := func(p lab.Protocol, src, dst string, port uint16, payload string) []byte {
		s := lab.Segment{
			Protocol: p, Payload: []byte(payload),
			Src: netip.AddrPortFrom(netip.MustParseAddr(src), 4711), Dst: netip.AddrPortFrom(netip.MustParseAddr(dst), port),
		}
		if p == lab.TCP {
			s.Flags = lab.SYN
			s.Payload = nil
		}
		return s.Packet()
	}
	return [][]byte{
		packet(lab.UDP, neighbour, private, privatePort, "attack"),
		packet(lab.UDP, spoofed, private, privatePort, "attack"),
		packet(lab.UDP, spoofed, node, publicPort, "attack"),
		packet(lab.TCP, neighbour, private, privatePort, ""),
		packet(lab.UDP, neighbour, node, publicPort, "control"),
	}
}

// send sends all packets in turn until the attack ends.
func (a *attack) send() {
	mac, err := a.mac()
	if err == nil {
		err = a.w.lab.NodeB.Do(func() error { return a.flood(mac) })
	}
	if err != nil {
		a.w.Errorf("attack: %v", err)
	}
}

func (a *attack) flood(mac net.HardwareAddr) error {
	link, err := net.InterfaceByName(a.w.lab.NodeB.Interface())
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	const ip = unix.ETH_P_IP>>8 | unix.ETH_P_IP&0xff<<8
	to := &unix.SockaddrLinklayer{Protocol: ip, Ifindex: link.Index, Halen: 6}
	copy(to.Addr[:], mac)
	for all := packets(); a.ctx.Err() == nil; a.sent.Add(1) {
		for _, p := range all {
			if err := unix.Sendto(fd, p, 0, to); err != nil && !errors.Is(err, unix.ENOBUFS) {
				return err
			}
		}
		time.Sleep(200 * time.Microsecond)
	}
	return nil
}

func (a *attack) mac() (mac net.HardwareAddr, err error) {
	err = a.w.lab.NodeA.Do(func() error {
		link, err := net.InterfaceByName(a.w.lab.NodeA.Interface())
		if err == nil {
			mac = link.HardwareAddr
		}
		return err
	})
	return mac, err
}

// answered counts replies of the TCP listener at 127.0.0.1.
func (a *attack) answered() int {
	return a.tap.Count(func(p lab.Packet) bool { return p.Src.Addr().IsLoopback() && !p.Out })
}

// waitForPackets waits until packets of every kind have been sent and had time to arrive.
func (a *attack) waitForPackets() {
	a.w.Helper()
	sent, control := a.sent.Load(), a.controlled.Load()
	a.w.eventually(func() error {
		if a.sent.Load() < sent+100 || a.controlled.Load() < control+50 {
			return errors.New("ordinary packets of the neighbour do not arrive")
		}
		return nil
	})
}

// checkNothingArrived verifies that no packet of the attack has arrived since the last reset.
func (a *attack) checkNothingArrived(when string) {
	a.w.Helper()
	a.waitForPackets()
	if n, m := a.arrived.Load(), a.answered(); n > 0 || m > 0 {
		a.w.Fatalf("%s: %d datagrams of a neighbour arrived in 127.0.0.0/8 or from there, "+
			"and %d segments were answered (of %d sent each)",
			when, n, m, a.sent.Load())
	}
}

func (a *attack) reset() {
	a.waitForPackets()
	a.arrived.Store(0)
	a.tap.Reset()
}
