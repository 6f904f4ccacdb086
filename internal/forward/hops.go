package forward

import (
	"net/netip"
	"sync"
)

// maxHops is through how many sockets of this Engine a client may have come. An endpoint of a Service may be the address of
// another Service, or its own: without a limit, one client would take all connections or flows.
const maxHops = 8

// hops has the sources of all connections and flows to backends, and through how many sockets their clients have come with
// them. It is safe for concurrent use.
type hops struct {
	mu   sync.Mutex
	from map[source]uint8 // nil: none yet
}

// source is the local address of a socket to a backend.
type source struct {
	protocol Protocol
	at       netip.AddrPort
}

// of returns through how many sockets a client has come.
func (h *hops) of(client source) uint8 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.from[client]
}

// begin records a socket whose client has come through some others.
func (h *hops) begin(s source, client uint8) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.from == nil {
		h.from = map[source]uint8{}
	}
	h.from[s] = client + 1
}

// end forgets a socket, which is still open.
func (h *hops) end(s source) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.from, s)
}
