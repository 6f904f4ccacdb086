//go:build linux

package lab

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Flow is a connection, or for UDP a client with a fixed source port. It is not safe for concurrent use.
type Flow struct {
	probe  Probe
	socket *socket
	hello  Result
	assoc  *association // for SCTP

	destroyed int
}

// Open connects and keeps the connection open. For UDP it sends nothing. On failure the flow is
// nil and the result has the reason.
func (h *Host) Open(p Probe) (*Flow, Result) {
	start := time.Now()
	if p.Timeout == 0 {
		p.Timeout = h.world.options.Timeout
	}
	f, err := h.connect(p)
	r := outcomeOf(err)
	if f != nil {
		r = f.hello
		r.Local, r.Connected = f.socket.local, f.socket.took
	}
	r.Took = time.Since(start)
	return f, r
}

func (h *Host) connect(p Probe) (*Flow, error) {
	deadline := time.Now().Add(p.Timeout)
	s, err := h.begin(p, deadline)
	if err != nil {
		return nil, err
	}
	f := &Flow{probe: p, socket: s}
	if err := f.handshake(deadline); err != nil {
		s.close()
		return nil, err
	}
	return f, nil
}

// begin connects a socket, from a fresh port unless the probe has one. It skips ports that are in use.
func (h *Host) begin(p Probe, deadline time.Time) (*socket, error) {
	from, anyPort := p.From, p.From.Port() == 0 && p.Protocol != Echo
	for {
		if anyPort {
			p.From = netip.AddrPortFrom(from.Addr(), h.freshPort())
		}
		s, err := h.open(p)
		if err == nil {
			if err = s.connect(p, deadline); err == nil {
				return s, nil
			}
			s.close()
		}
		taken := errors.Is(err, unix.EADDRINUSE) || errors.Is(err, unix.EADDRNOTAVAIL)
		if !anyPort || !taken || time.Now().After(deadline) {
			return nil, err
		}
	}
}

// handshake identifies the server, for protocols with a handshake.
func (f *Flow) handshake(deadline time.Time) error {
	switch f.probe.Protocol {
	case TCP:
		return f.handshakeTCP(deadline)
	case SCTP:
		return f.handshakeSCTP(deadline)
	}
	return nil
}

func (f *Flow) handshakeTCP(deadline time.Time) error {
	var line []byte
	b := make([]byte, 256)
	for {
		n, err := f.socket.read(b, deadline)
		if err != nil {
			return fmt.Errorf("read from %s: %w", f.probe.To, err)
		}
		if n == 0 {
			return fmt.Errorf("%s closed the connection", f.probe.To)
		}
		line = append(line, b[:n]...)
		if r, _, ok := readIdentity(line); ok {
			f.hello = r
			return nil
		}
	}
}

// Ask sends a payload and waits for the answer, for at most the probe's Timeout. Without a payload
// it sends a few bytes.
func (f *Flow) Ask(payload []byte) Result {
	return f.AskWithin(payload, f.probe.Timeout)
}

// AskWithin is Ask with another timeout.
func (f *Flow) AskWithin(payload []byte, timeout time.Duration) Result {
	start := time.Now()
	deadline := start.Add(timeout)
	var r Result
	var err error
	switch f.probe.Protocol {
	case TCP:
		r, err = f.askTCP(payload, deadline)
	case SCTP:
		r, err = f.askSCTP(payload, deadline)
	case Echo:
		r, err = f.askPing(payload, deadline)
	default:
		r, err = f.askUDP(payload, deadline)
		// The socket was destroyed, and a client connects again.
		if errors.Is(err, unix.ECONNABORTED) || errors.Is(err, unix.EDESTADDRREQ) {
			f.destroyed++
			if err = f.socket.connect(f.probe, deadline); err == nil {
				r, err = f.askUDP(payload, deadline)
			}
		}
	}
	if err != nil {
		r = outcomeOf(fmt.Errorf("ask %s: %w", f.probe.To, err))
	}
	r.Local, r.Took = f.socket.local, time.Since(start)
	return r
}

// Probe returns the probe with which the flow was opened.
func (f *Flow) Probe() Probe { return f.probe }

// Destroyed returns how often the UDP socket was destroyed. Ask notices it, and connects again.
func (f *Flow) Destroyed() int { return f.destroyed }

// Close ends the flow.
func (f *Flow) Close() { f.socket.close() }

// nonce makes a message unique, so that a late answer to an earlier one is not mistaken for its.
func nonce(payload []byte) []byte {
	return append(fmt.Appendf(nil, "%016x", rand.Uint64()), payload...)
}

func (f *Flow) askTCP(payload []byte, deadline time.Time) (Result, error) {
	message := nonce(payload)
	written := make(chan error, 1)
	if len(message) > 1<<14 { // send and receive concurrently, because full buffers would block both ends
		go func() { written <- f.socket.write(message, deadline) }()
	} else {
		written <- f.socket.write(message, deadline)
	}
	var got []byte
	b := make([]byte, 1<<16)
	for len(got) < len(message) {
		n, err := f.socket.read(b, deadline)
		if err == nil && n == 0 {
			err = fmt.Errorf("closed after %d of %d bytes", len(got), len(message))
		}
		if err != nil {
			return Result{}, err
		}
		got = append(got, b[:n]...)
	}
	r := f.hello
	r.Echoed = bytes.Equal(got, message)
	return r, <-written
}

func (f *Flow) askUDP(payload []byte, deadline time.Time) (Result, error) {
	message := nonce(payload)
	if err := f.socket.write(message, deadline); err != nil {
		return Result{}, err
	}
	b := make([]byte, 1<<16)
	for {
		n, err := f.socket.read(b, deadline)
		if err != nil {
			return Result{}, err
		}
		r, rest, ok := readIdentity(b[:n])
		if !ok || len(rest) < 16 || !bytes.Equal(rest[:16], message[:16]) {
			continue
		}
		r.Echoed = bytes.Equal(rest, message)
		return r, nil
	}
}

// askPing sends an ICMP echo request; the kernel fills in identifier and checksum.
func (f *Flow) askPing(payload []byte, deadline time.Time) (Result, error) {
	request, reply := byte(8), byte(0)
	if f.probe.To.Addr().Is6() {
		request, reply = 128, 129
	}
	message := append([]byte{request, 0, 0, 0, 0, 0, 0, 1}, nonce(payload)...)
	if err := f.socket.write(message, deadline); err != nil {
		return Result{}, err
	}
	b := make([]byte, 1<<16)
	for {
		n, err := f.socket.read(b, deadline)
		if err != nil {
			return Result{}, err
		}
		if n >= 8 && b[0] == reply && bytes.Equal(b[8:n], message[8:]) {
			return Result{Outcome: Answered, Backend: f.probe.To, Source: f.socket.local, Echoed: true}, nil
		}
	}
}

// freshPort returns a source port that no client of this machine has used. For connectionless
// protocols conntrack keeps entries for some time, and would match a new client to an old entry.
func (m *machine) freshPort() uint16 {
	const between = endOfNodePorts - firstNodePort
	port := firstClientPort + m.clients.Add(1)%(endOfClientPorts-firstClientPort-between)
	if port >= firstNodePort {
		port += between
	}
	return uint16(port)
}
