package relay

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/relay/datagram"
)

// ports opens the sockets of flows. While there are many free ports, each has one of its own. Then
// flows to different backends share ports, so that the rest of the host finds free ones. It is safe
// for concurrent use.
type ports struct {
	limit int // of ports that are taken

	mu    sync.Mutex
	taken map[uint16]holding
	order []uint16 // the keys of taken
	used  map[binding]struct{}
	next  int // in order
}

// holding is the number of flows with a port, and the index of the port in order.
type holding struct{ flows, index int }

// binding is a local port and its peer. The kernel delivers the datagrams of each to one socket.
type binding struct {
	backend netip.AddrPort
	port    uint16
}

// portRange is the file with the range of ports for outgoing connections.
const portRange = "/proc/sys/net/ipv4/ip_local_port_range"

// newPorts reads the range of ports of the thread's network namespace.
func newPorts() (*ports, error) {
	text, err := os.ReadFile(portRange)
	if err != nil {
		return nil, err
	}
	first, last := 0, 0
	if _, err := fmt.Sscan(string(text), &first, &last); err != nil {
		return nil, fmt.Errorf("read %s: %w", portRange, err)
	}
	limit := (last - first + 1) * 3 / 4
	return &ports{limit: max(limit, 1), taken: map[uint16]holding{}, used: map[binding]struct{}{}}, nil
}

// dial opens a socket to a backend. It returns EAGAIN if there is no port for it.
func (p *ports) dial(to netip.AddrPort) (int, uint16, error) {
	p.mu.Lock()
	free := len(p.order) < p.limit
	p.mu.Unlock()
	if !free {
		return p.share(to)
	}
	fd, err := datagram.Dial(to)
	if errors.Is(err, unix.EAGAIN) { // other programs have so many
		return p.share(to)
	}
	if err != nil {
		return -1, 0, err
	}
	local, err := datagram.LocalAddr(fd)
	if err == nil {
		err = datagram.Share(fd)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, 0, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.take(binding{backend: to, port: local.Port()})
	return fd, local.Port(), nil
}

// share opens a socket to a backend with a port that flows to other backends have.
func (p *ports) share(to netip.AddrPort) (int, uint16, error) {
	const attempts = 8 // other sockets of the host may have taken the port too
	for range attempts {
		b, ok := p.reserve(to)
		if !ok {
			break
		}
		fd, err := datagram.DialFrom(b.port, to)
		if err == nil {
			return fd, b.port, nil
		}
		p.release(to, b.port)
		if shortage(err) != reasonPorts {
			return -1, 0, err
		}
	}
	return -1, 0, unix.EAGAIN
}

// reserve takes a port for a backend to which no flow has it.
func (p *ports) reserve(to netip.AddrPort) (binding, bool) {
	const attempts = 128
	p.mu.Lock()
	defer p.mu.Unlock()
	for range min(attempts, len(p.order)) {
		p.next++
		b := binding{backend: to, port: p.order[p.next%len(p.order)]}
		if _, used := p.used[b]; !used {
			p.take(b)
			return b, true
		}
	}
	return binding{}, false
}

// take records a port. The caller holds mu.
func (p *ports) take(b binding) {
	p.used[b] = struct{}{}
	h, ok := p.taken[b.port]
	if !ok {
		h.index = len(p.order)
		p.order = append(p.order, b.port)
	}
	h.flows++
	p.taken[b.port] = h
}

// release gives back the port of a flow to a backend. Its socket must be closed.
func (p *ports) release(to netip.AddrPort, port uint16) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.used, binding{backend: to, port: port})
	h := p.taken[port]
	if h.flows--; h.flows > 0 {
		p.taken[port] = h
		return
	}
	delete(p.taken, port)
	last := len(p.order) - 1
	moved := p.order[last]
	p.order[h.index], p.order = moved, p.order[:last]
	if moved != port {
		m := p.taken[moved]
		m.index = h.index
		p.taken[moved] = m
	}
}
