package traffic

import "net/netip"

const (
	// maxClients is the number of clients that are counted at a time. A client with more than one in maxClients of all
	// entries is always counted.
	maxClients = 4096

	// listedClients is the maximum number of clients in a Listing.
	listedClients = 1000
)

// heavy counts the clients with the most entries in bounded memory, by the algorithm of Misra and Gries. When it is
// full, a new client decrements the count of each client, and clients with a count of 0 are deleted. So no count is too
// high, and none is too low by more than lost. Each decrement removes size entries, so add takes constant time on
// average, and lost is at most the number of entries divided by size.
type heavy struct {
	size int
	all  map[netip.Addr]*clientCount
	lost uint64
}

// clientCount is the count of a client.
type clientCount struct {
	entries, live uint32
	ports         [4]portCount // by the same algorithm, with size 4
}

// portCount is the number of entries of a client to a port.
type portCount struct {
	port int32
	n    uint32 // 0: unused
}

func newHeavy(size int) heavy { return heavy{size: size, all: map[netip.Addr]*clientCount{}} }

// add counts an entry to a port.
func (h *heavy) add(addr netip.Addr, port int32, live bool) { //nolint:revive // a property of the entry
	c := h.all[addr]
	if c == nil && len(h.all) == h.size {
		h.lost++
		for addr, c := range h.all {
			if c.entries--; c.entries == 0 {
				delete(h.all, addr)
			}
		}
		return
	}
	if c == nil {
		c = &clientCount{}
		h.all[addr] = c
	}
	c.entries++
	if live {
		c.live++
	}
	if port != noPort {
		c.add(port)
	}
}

func (c *clientCount) add(port int32) {
	free := -1
	for i, v := range c.ports {
		switch {
		case v.n > 0 && v.port == port:
			c.ports[i].n++
			return
		case v.n == 0:
			free = i
		}
	}
	if free >= 0 {
		c.ports[free] = portCount{port, 1}
		return
	}
	for i := range c.ports {
		c.ports[i].n--
	}
}

// top returns the port with the most entries, or noPort.
func (c *clientCount) top() int32 {
	best := portCount{port: noPort}
	for _, v := range c.ports {
		if v.n > best.n || v.n == best.n && v.n > 0 && v.port < best.port {
			best = v
		}
	}
	return best.port
}
