package relay

import (
	"net/netip"
	"sync"
)

// maxHops is through how many sockets of this Engine a client may have come. An endpoint of a Service may be the
// address of another Service, or its own: without a limit, one client would take all connections or flows.
const maxHops = 8

// hops has the sources of connections and flows to backends, and through how many sockets their clients have come
// with them. Of sockets with the same source it has the last one. It is safe for concurrent use.
type hops struct {
	mu   sync.Mutex
	from map[source]hop
}

// source is the local address of a socket to a backend.
type source struct {
	protocol Protocol
	at       netip.AddrPort
}

// hop is a socket to a backend.
type hop struct {
	to    netip.AddrPort
	count uint8 // sockets up to this one; 0: there is none
}

// of returns the socket with a source.
func (h *hops) of(s source) hop {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.from[s]
}

// begin records a socket to a backend, whose client has come through some others.
func (h *hops) begin(s source, backend netip.AddrPort, client uint8) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.from[s] = hop{backend, client + 1}
}

// end forgets a socket to a backend, which is still open.
func (h *hops) end(s source, backend netip.AddrPort) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.from[s].to == backend {
		delete(h.from, s)
	}
}
