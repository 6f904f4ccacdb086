package nftables

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Rules count new connections by frontend and row, in elements of sets that they add themselves. Counters in the maps
// of backends would restart at each change of a row, and 300,000 elements with a counter for each processor would take
// hundreds of megabytes. The sets have only rows that had a new connection within countedFor. They are read before the
// backends of rows change.

const (
	// maxCounts bounds the memory of a set: an element takes some 150 bytes, and 16 for each processor. Connections to
	// further rows work, but are not counted.
	maxCounts = 1 << 16

	// countedFor is the time after which an element without a new connection expires. A tally that is read more often
	// misses no connection.
	countedFor = time.Hour
)

// counting is a set of counts, and the map whose rows it counts.
type counting struct{ set, of object }

// countings returns the sets of counts. Most connections are to addresses, for which there are two, because the kernel
// walks a set from its start for each part of a listing.
func countings() []counting {
	all := []counting{{oddCount, backendElement.in(byAddress)}}
	for s := range spaces {
		all = append(all, counting{backendCount.in(s), backendElement.in(s)},
			counting{outsideBackendCount.in(s), outsideBackendElement.in(s)})
	}
	return all
}

// counts reports whether the set counts a row, unless the other one for addresses is full.
func (c counting) counts(row key) bool {
	if row.of != c.of || c.of != backendElement.in(byAddress) {
		return row.of == c.of
	}
	odd := row.name[tableFor(row.ip).Family.AddrLen()-1]&1 == 1
	return odd == (c.set == oddCount)
}

// counters reads elements. nft.Conn implements it.
type counters interface {
	Counters(ctx context.Context, t nft.Table, set string, fn func(nft.Counter)) error
	Find(ctx context.Context, t nft.Table, set string, keys []string) (map[string]nft.Found, error)
}

// counts sums up new connections.
type counts struct {
	kernel counters
	layout *layout
	now    func() time.Time

	mu     sync.Mutex
	tally  *plane.Tally
	list   []nft.Counter // of a set
	forget time.Time     // when to delete old items of the tally next
}

func newCounts(kernel counters) *counts {
	return &counts{kernel: kernel, layout: newLayout(), now: time.Now, tally: plane.NewTally()}
}

// Traffic implements plane.Opened.
func (c *counts) Traffic(ctx context.Context, routes *route.Snapshot) (plane.Counted, error) {
	c.locked(func() { c.tally.Read(routes) })
	if err := c.read(ctx, sync.OnceValue(func() portsByFront { return portsOf(routes) })); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.now(); !now.Before(c.forget) {
		c.tally.Forget(now)
		c.forget = now.Add(time.Minute)
	}
	return c.tally.Counted(), nil
}

func (c *counts) locked(do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	do()
}

// read adds the connections that the kernel has counted since the last call. If a listing misses an element by chance,
// the next one counts its connections, because the tally keeps the last value of an element until it expires.
func (c *counts) read(ctx context.Context, ports func() portsByFront) (err error) {
	for _, ip := range route.Families() {
		for _, of := range countings() {
			if c.locked(func() { err = c.readSet(ctx, ip, of, ports) }); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *counts) readSet(ctx context.Context, ip route.Family, of counting, ports func() portsByFront) error {
	now, in := c.now(), c.name(ip, of.set)
	c.list = c.list[:0]
	err := c.kernel.Counters(ctx, tableFor(ip), c.layout[of.set].Name, func(e nft.Counter) { c.list = append(c.list, e) })
	if err != nil || len(c.list) == 0 {
		return err
	}
	port := func(e nft.Counter) (id route.PortID, known bool) {
		id, known = ports()[key{ip, frontendElement.in(of.of.space()), e.Key[:len(e.Key)-len(nft.Key{}.Index(0))]}]
		return id, known
	}
	var unknown []string
	for _, e := range c.list {
		if c.tally.Backend(plane.Object{In: in, Name: e.Key}).IsValid() {
			continue
		}
		if _, known := port(e); known {
			unknown = append(unknown, e.Key)
		}
	}
	rows, err := c.kernel.Find(ctx, tableFor(ip), c.layout[of.of].Name, unknown)
	if err != nil {
		return err
	}
	for _, e := range c.list {
		c.tally.Add(reading(in, e, now), func(last netip.AddrPort) (at plane.Endpoint, known bool) {
			if at.Backend = last; !last.IsValid() {
				at.Backend = backendIn(rows[e.Key].Data)
			}
			at.Port, known = port(e)
			return at, known && at.Backend.IsValid()
		})
	}
	return nil
}

// reading returns what an element of a set has counted.
func reading(in string, e nft.Counter, now time.Time) plane.Reading {
	return plane.Reading{Object: plane.Object{In: in, Name: e.Key}, N: e.Packets, Until: now.Add(e.Expires)}
}

// name returns the name of a set of a family.
func (c *counts) name(ip route.Family, set object) string {
	return ip.String() + " " + c.layout[set].Name
}

// readRows adds the connections to rows whose backends are about to change. If elements cannot be read, they count for
// the next backend of their row.
func (c *counts) readRows(ctx context.Context, rows []changedRow) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ip := range route.Families() {
		for _, of := range countings() {
			in := map[string]changedRow{}
			for _, r := range rows {
				if r.ip == ip && of.counts(r.key) {
					in[r.name] = r
				}
			}
			c.readElements(ctx, ip, of, in)
		}
	}
}

// readElements adds the connections to rows that a set counts, by the keys of their elements.
func (c *counts) readElements(ctx context.Context, ip route.Family, of counting, rows map[string]changedRow) {
	now, in := c.now(), c.name(ip, of.set)
	found, _ := c.kernel.Find(ctx, tableFor(ip), c.layout[of.set].Name, slices.Collect(maps.Keys(rows)))
	for key, r := range rows {
		if e, has := found[key]; has {
			c.tally.Add(reading(in, e.Counter, now), func(netip.AddrPort) (plane.Endpoint, bool) {
				return plane.Endpoint{Port: r.port, Backend: r.backend}, true
			})
		}
		c.tally.Move(plane.Object{In: in, Name: key})
	}
}

// forgetRows makes all elements count for the backends that their rows have now.
func (c *counts) forgetRows() { c.locked(c.tally.MoveAll) }

// changedRow is a row of a Service port whose backend is about to change.
type changedRow struct {
	key

	port    route.PortID
	backend netip.AddrPort
}

// portsByFront finds ports by the elements of their frontends.
type portsByFront map[key]route.PortID

// noPorts makes read skip the connections counted so far.
func noPorts() portsByFront { return nil }

func portsOf(routes *route.Snapshot) portsByFront {
	ports := make(portsByFront, routes.Len())
	for svc := range routes.Services() {
		for i := range svc.Ports {
			p := &svc.Ports[i]
			for j := range p.Frontends {
				ports[keyOf(p, &p.Frontends[j])] = p.ID(svc.Name)
			}
		}
	}
	return ports
}
