//go:build linux

package lab

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// sctpStack is the SCTP implementation of one machine and family: the served ports, and one raw socket, which keeps
// the kernel from answering SCTP itself.
type sctpStack struct {
	family string
	file   *os.File
	mu     sync.Mutex
	ports  map[uint16]*Server
}

// portHold removes its port from the stack when it is closed.
type portHold struct {
	stack *sctpStack
	port  uint16
}

// Close frees the port.
func (p portHold) Close() error {
	p.stack.mu.Lock()
	defer p.stack.mu.Unlock()
	delete(p.stack.ports, p.port)
	return nil
}

func (h *Host) serveSCTP(family string, port uint16, s *Server) error {
	stack, err := h.sctpStack(family)
	if err != nil {
		return err
	}
	stack.mu.Lock()
	defer stack.mu.Unlock()
	if stack.ports[port] != nil {
		return fmt.Errorf("bind: %w", unix.EADDRINUSE)
	}
	stack.ports[port] = s
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[io.Closer(portHold{stack, port})] = true
	return nil
}

// sctpStack returns the machine's SCTP stack, and starts it on first use. It ends with the machine.
func (m *machine) sctpStack(family string) (*sctpStack, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.sctp[family]; s != nil {
		return s, nil
	}
	domain := map[string]int{"4": unix.AF_INET, "6": unix.AF_INET6}[family]
	fd := -1
	err := m.do(func() error {
		var err error
		fd, err = unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_SCTP)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open raw socket: %w", err)
	}
	s := &sctpStack{family: family, file: os.NewFile(uintptr(fd), "sctp"), ports: map[uint16]*Server{}}
	raw, err := s.file.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("reach raw socket: %w", err)
	}
	if err := askDestination(family, raw); err != nil {
		return nil, err
	}
	if m.sctp == nil {
		m.sctp = map[string]*sctpStack{}
	}
	m.sctp[family] = s
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = raw.Read(func(fd uintptr) bool { return s.drain(int(fd)) }) // ends when the file is closed
	}()
	m.closers = append(m.closers, func() {
		_ = s.file.Close()
		<-done
	})
	return s, nil
}

// drain answers all received packets and returns false to wait for more.
func (s *sctpStack) drain(fd int) (done bool) {
	b, oob := make([]byte, 1<<16), make([]byte, 256)
	for {
		n, oobn, _, sender, err := unix.Recvmsg(fd, b, oob, unix.MSG_DONTWAIT)
		if err != nil {
			return false
		}
		client, to := AddrPort(sender).Addr(), destination(oob[:oobn])
		p, ok := decodeSCTP(afterIP(b[:n], client))
		if !ok {
			continue
		}
		if reply, ok := s.answer(p, client, to); ok {
			_ = unix.Sendmsg(fd, reply.encode(), from(to), Sockaddr(netip.AddrPortFrom(client, 0)), 0)
		}
	}
}

// answer returns the reply to a packet, if there is one. It needs no state: both sides use the client's tag.
func (s *sctpStack) answer(p sctpPacket, client, to netip.Addr) (sctpPacket, bool) {
	reply := sctpPacket{sport: p.dport, dport: p.sport, tag: p.tag}
	s.mu.Lock()
	server := s.ports[p.dport]
	s.mu.Unlock()
	id := identity(netip.AddrPortFrom(to, p.dport), netip.AddrPortFrom(client, p.sport))
	switch {
	case p.kind == chunkInit && len(p.body) >= initSize:
		reply.tag = binary.BigEndian.Uint32(p.body)
		if server == nil {
			reply.kind = chunkAbort
			return reply, true
		}
		server.count.Add(1)
		reply.kind, reply.body = chunkInitAck, initBody(reply.tag, param(paramCookie, id)...)
	case server == nil:
		return reply, false
	case p.kind == chunkCookie:
		reply.kind = chunkCookieAck
	case p.kind == chunkBeat:
		reply.kind, reply.body = chunkBeatAck, param(paramBeat, append(id, findParam(p.body, paramBeat)...))
	default:
		return reply, false
	}
	return reply, true
}
