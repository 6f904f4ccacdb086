//go:build linux

package conformance

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/lab"
)

// neighbourCannotReachLoopback makes a machine on the network of node A send UDP to 127.0.0.1
// there, which takes a raw socket, and verifies that it does not arrive.
func neighbourCannotReachLoopback(port uint16) step {
	return func(e *env) error {
		arrived, err := e.neighbourSends(port)
		if err == nil && arrived {
			err = errors.New("a socket on 127.0.0.1 received a packet of a neighbour")
		}
		return err
	}
}

// neighbourReachesLoopback sets route_localnet, as another program might, and verifies that
// such a packet arrives: the proxy must not filter it if it serves no NodePorts on 127.0.0.1.
func neighbourReachesLoopback(port uint16) step {
	return func(e *env) error {
		e.alters("another program has set route_localnet")
		setOn(e.t, e.lab.NodeA, routeLocalnet)
		arrived, err := e.neighbourSends(port)
		if err == nil && !arrived {
			err = errors.New("a packet of a neighbour did not arrive on 127.0.0.1, which serves no NodePorts and needs no guard")
		}
		return err
	}
}

// neighbourSends reports whether a packet of a neighbour arrives at a port of 127.0.0.1 on node A. It sends a second
// packet, to the node's own address, which always arrives and arrives later.
func (e *env) neighbourSends(port uint16) (arrived bool, err error) {
	var conn net.PacketConn
	err = e.lab.NodeA.Do(func() (err error) {
		conn, err = net.ListenPacket("udp4", fmt.Sprintf(":%d", port))
		return err
	})
	if err != nil {
		return false, fmt.Errorf("listen on node A: %w", err)
	}
	defer func() { _ = conn.Close() }()
	mac, err := hardwareAddr(e.lab.NodeA)
	if err != nil {
		return false, err
	}
	loopback, own := [4]byte{127, 0, 0, 1}, [4]byte{192, 168, 0, 2}
	for _, to := range [][4]byte{loopback, own} {
		if err := sendDatagram(e.lab.Outside, mac, to, port); err != nil {
			return false, err
		}
	}
	if err := conn.SetReadDeadline(time.Now().Add(changeTimeout)); err != nil {
		return false, fmt.Errorf("set deadline: %w", err)
	}
	for to := make([]byte, 4); ; {
		if _, _, err := conn.ReadFrom(to); err != nil {
			return false, fmt.Errorf("wait for the packet to the node's own address: %w", err)
		}
		if bytes.Equal(to, own[:]) {
			return arrived, nil
		}
		arrived = true
	}
}

func hardwareAddr(h *lab.Host) (mac net.HardwareAddr, err error) {
	err = h.Do(func() error {
		link, err := net.InterfaceByName(h.Interface())
		if err != nil {
			return fmt.Errorf("find interface: %w", err)
		}
		mac = link.HardwareAddr
		return nil
	})
	return mac, err
}

// sendDatagram sends one UDP packet to an interface, whatever the address in it.
func sendDatagram(from *lab.Host, mac net.HardwareAddr, to [4]byte, port uint16) error {
	return from.Do(func() error {
		link, err := net.InterfaceByName(from.Interface())
		if err != nil {
			return fmt.Errorf("find interface: %w", err)
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return fmt.Errorf("open packet socket: %w", err)
		}
		defer unix.Close(fd)
		dst := unix.SockaddrLinklayer{Protocol: ethIP, Ifindex: link.Index, Halen: 6}
		copy(dst.Addr[:], mac)
		if err := unix.Sendto(fd, datagram(to, port), 0, &dst); err != nil {
			return fmt.Errorf("send packet: %w", err)
		}
		return nil
	})
}

// ethIP is unix.ETH_P_IP in network order.
const ethIP = unix.ETH_P_IP>>8 | unix.ETH_P_IP&0xff<<8

// datagram returns a UDP packet (RFC 791, RFC 768) from a neighbour to node A, without a UDP
// checksum. Its payload is its destination address.
func datagram(to [4]byte, port uint16) []byte {
	b := make([]byte, 32)
	b[0], b[8], b[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	copy(b[12:], []byte{192, 168, 0, 1})
	copy(b[16:], to[:])
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	binary.BigEndian.PutUint16(b[10:], ^uint16(sum+sum>>16))
	binary.BigEndian.PutUint16(b[20:], 40000)
	binary.BigEndian.PutUint16(b[22:], port)
	binary.BigEndian.PutUint16(b[24:], 12)
	copy(b[28:], to[:])
	return b
}
