//go:build linux

package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Server answers on one port of a host, on all its addresses: it sends its own address and the client's, and echoes
// all data.
type Server struct {
	count atomic.Int64
	mu    sync.Mutex
	open  map[io.Closer]bool
	ended bool
	wait  sync.WaitGroup
}

// Count returns the number of accepted connections, datagrams or associations.
func (s *Server) Count() int { return int(s.count.Load()) }

// Close stops the server and ends its connections.
func (s *Server) Close() {
	s.mu.Lock()
	s.ended = true
	for c := range s.open {
		_ = c.Close() // no client is left
	}
	s.mu.Unlock()
	s.wait.Wait()
}

// track registers a connection to close; it returns false if the server is closed.
func (s *Server) track(c io.Closer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		_ = c.Close()
		return false
	}
	s.open[c] = true
	return true
}

func (s *Server) untrack(c io.Closer) {
	_ = c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, c)
}

// Serve answers on a port, in both families, until the test ends.
func (h *Host) Serve(p Protocol, port uint16) *Server {
	h.t.Helper()
	s := &Server{open: map[io.Closer]bool{}}
	start := map[Protocol]func(string, uint16, *Server) error{
		TCP: h.serveTCP, UDP: h.serveUDP, SCTP: h.serveSCTP,
	}[p]
	if start == nil {
		h.t.Fatalf("no server for %s", p)
	}
	h.onClose(s.Close)
	for _, family := range []string{"4", "6"} {
		err := patiently(func() error { return start(family, port, s) })
		if err != nil {
			h.t.Fatalf("serve %s port %d on %s: %v", p, port, h.name, err)
		}
	}
	return s
}

// patiently calls a function that opens a socket until the port is free, for a second: a process that another test
// has just forked may have the socket of a server that is closed by now.
func patiently(open func() error) error {
	for end := time.Now().Add(time.Second); ; time.Sleep(10 * time.Millisecond) {
		if err := open(); !errors.Is(err, unix.EADDRINUSE) || time.Now().After(end) {
			return err
		}
	}
}

func (h *Host) serveTCP(family string, port uint16, s *Server) error {
	config := net.ListenConfig{KeepAlive: -1} // connections are short: four system calls less for each
	config.SetMultipathTCP(false)
	var l net.Listener
	err := h.do(func() error {
		var err error
		l, err = config.Listen(context.Background(), "tcp"+family, fmt.Sprintf(":%d", port))
		return err
	})
	if err == nil {
		s.accept(l)
	}
	return err
}

// accept serves the clients of a listener until the server is closed.
func (s *Server) accept(l net.Listener) {
	if !s.track(l) {
		return
	}
	s.wait.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.count.Add(1)
			s.wait.Go(func() { s.answer(conn) })
		}
	})
}

// answer serves one client of a TCP socket, which detects errors.
func (s *Server) answer(conn net.Conn) {
	if !s.track(conn) {
		return
	}
	defer s.untrack(conn)
	local, remote := conn.LocalAddr().(*net.TCPAddr), conn.RemoteAddr().(*net.TCPAddr)
	if _, err := conn.Write(identity(local.AddrPort(), remote.AddrPort())); err != nil {
		return
	}
	_, _ = io.Copy(conn, struct{ io.Reader }{conn})
}

func (h *Host) serveUDP(family string, port uint16, s *Server) error {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return askDestination(family, c)
	}}
	var l net.PacketConn
	err := h.do(func() error {
		var err error
		l, err = config.ListenPacket(context.Background(), "udp"+family, fmt.Sprintf(":%d", port))
		return err
	})
	if err != nil || !s.track(l) {
		return err
	}
	conn := l.(*net.UDPConn)
	s.wait.Go(func() {
		b, oob := make([]byte, 1<<16), make([]byte, 128)
		for {
			n, oobn, _, client, err := conn.ReadMsgUDPAddrPort(b, oob)
			if err != nil {
				return
			}
			s.count.Add(1)
			to := destination(oob[:oobn])
			reply := append(identity(netip.AddrPortFrom(to, port), client), b[:n]...)
			_, _, _ = conn.WriteMsgUDPAddrPort(reply, from(to), client) // the client detects errors
		}
	})
	return nil
}

// askDestination enables control messages with the destination address of packets.
func askDestination(family string, c syscall.RawConn) error {
	var set error
	if err := c.Control(func(fd uintptr) { set = enableDestination(int(fd), family) }); err != nil {
		return fmt.Errorf("reach socket: %w", err)
	}
	return set
}

func enableDestination(fd int, family string) error {
	if family == "6" {
		return unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, 1)
	}
	return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_PKTINFO, 1)
}

// destination returns the destination address in a control message.
func destination(oob []byte) netip.Addr {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return netip.Addr{}
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.SOL_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= 12:
			return netip.AddrFrom4([4]byte(m.Data[8:12]))
		case m.Header.Level == unix.SOL_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= 16:
			return netip.AddrFrom16([16]byte(m.Data[:16]))
		}
	}
	return netip.Addr{}
}

// from returns the control message that sets the source address of a packet.
func from(a netip.Addr) []byte {
	if a.Is4() {
		return unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: a.As4()})
	}
	return unix.PktInfo6(&unix.Inet6Pktinfo{Addr: a.As16()})
}
