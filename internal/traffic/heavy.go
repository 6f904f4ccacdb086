package traffic

import "net/netip"

const (
	// maxClients is how many clients are counted at a time. A client with more than one in maxClients of all entries is
	// always among them.
	maxClients = 4096

	// listedClients is how many of them a Listing has.
	listedClients = 1000
)

// heavy counts the clients with the most entries in bounded memory, by the algorithm of Misra and Gries: when all
// places are taken, each client loses one entry, and those without any lose their place. So no count is too high, and
// none is lower by more than lost. Each loss takes away as many entries as there are places: so adding one takes
// constant time on average, and lost is at most the number of entries divided by the places.
type heavy struct {
	places int
	all    map[netip.Addr]*visitor
	lost   uint64
}

// visitor is what is counted of one.
type visitor struct {
	entries, live uint32
	services      [4]visits // the same algorithm, with four places
}

// visits are entries of a client to a port.
type visits struct {
	port int32
	n    uint32 // 0: the place is free
}

func newHeavy(places int) heavy { return heavy{places: places, all: map[netip.Addr]*visitor{}} }

// add counts an entry to a port.
func (h *heavy) add(addr netip.Addr, port int32, live bool) { //nolint:revive // a property of the entry
	c := h.all[addr]
	if c == nil && len(h.all) == h.places {
		h.lose()
		return
	}
	if c == nil {
		c = &visitor{}
		h.all[addr] = c
	}
	c.entries++
	if live {
		c.live++
	}
	if port != noPort {
		c.visit(port)
	}
}

func (h *heavy) lose() {
	h.lost++
	for addr, c := range h.all {
		if c.entries--; c.entries == 0 {
			delete(h.all, addr)
		}
	}
}

func (c *visitor) visit(port int32) {
	free := -1
	for i, v := range c.services {
		switch {
		case v.n > 0 && v.port == port:
			c.services[i].n++
			return
		case v.n == 0:
			free = i
		}
	}
	if free >= 0 {
		c.services[free] = visits{port, 1}
		return
	}
	for i := range c.services {
		c.services[i].n--
	}
}

// top returns the port with the most entries, or noPort.
func (c *visitor) top() int32 {
	best := visits{port: noPort}
	for _, v := range c.services {
		if v.n > best.n || v.n == best.n && v.n > 0 && v.port < best.port {
			best = v
		}
	}
	return best.port
}
