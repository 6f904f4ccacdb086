package ebpf

import (
	"iter"
	"maps"
	"net/netip"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/route"
)

// poolPorts follows changes to find the ports of pools, as the id of a pool is a hash of the name. It is safe for
// concurrent use.
type poolPorts struct {
	mu    sync.Mutex
	ports map[bpf.Pool]route.PortID // by the pool of all endpoints
}

func newPoolPorts() *poolPorts { return &poolPorts{ports: map[bpf.Pool]route.PortID{}} }

// Applied implements plane.Follower.
func (p *poolPorts) Applied(change route.Change) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range change.Touched {
		for _, port := range portsOf(t.Old) {
			delete(p.ports, port.pools[route.Cluster].id)
		}
		for _, port := range portsOf(t.New) {
			p.ports[port.pools[route.Cluster].id] = port.ID(t.Name)
		}
	}
}

// each calls a function with the port of each pool in a list. It omits pools of ports that do not exist any more.
func (p *poolPorts) each(pools iter.Seq[bpf.Pool], do func(bpf.Pool, route.PortID)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for pool := range pools {
		id := pool
		id[15] = byte(route.Cluster) + 1 // as in poolID
		if port, known := p.ports[id]; known {
			do(pool, port)
		}
	}
}

// counters are the numbers of connections in the kernel: bpf.Conn.
type counters interface {
	Counts() (map[bpf.Pool]uint64, error)
	BackendCounts() (map[bpf.Member]uint64, error)
}

// counter collects a series for each Service port to which sockets have connected.
type counter struct {
	conn  counters
	ports *poolPorts
	desc  *prometheus.Desc
}

func newCounter(conn counters, ports *poolPorts) *counter {
	desc := prometheus.NewDesc("sluice_ebpf_connections_total",
		"Connections and UDP flows to a Service port that were decided at sockets of this node.",
		[]string{"namespace", "service", "port", "protocol", "ip_family"}, nil)
	return &counter{conn: conn, ports: ports, desc: desc}
}

// Describe implements prometheus.Collector.
func (c *counter) Describe(out chan<- *prometheus.Desc) { out <- c.desc }

// sums returns how many connections each port has had, if any.
func (c *counter) sums() (map[route.PortID]uint64, error) {
	counts, err := c.conn.Counts()
	if err != nil {
		return nil, err
	}
	sums := map[route.PortID]uint64{}
	c.ports.each(maps.Keys(counts), func(pool bpf.Pool, p route.PortID) { sums[p] += counts[pool] })
	return sums, nil
}

// backends returns how many connections each backend has had, by port.
func (c *counter) backends() (map[route.PortID]map[netip.AddrPort]uint64, error) {
	counts, err := c.conn.BackendCounts()
	if err != nil {
		return nil, err
	}
	byPool := map[bpf.Pool]map[netip.AddrPort]uint64{}
	for m, n := range counts {
		if byPool[m.Pool] == nil {
			byPool[m.Pool] = map[netip.AddrPort]uint64{}
		}
		byPool[m.Pool][m.Backend] = n
	}
	all := map[route.PortID]map[netip.AddrPort]uint64{}
	c.ports.each(maps.Keys(byPool), func(pool bpf.Pool, p route.PortID) {
		if all[p] == nil {
			all[p] = map[netip.AddrPort]uint64{}
		}
		for at, n := range byPool[pool] {
			all[p][at] += n
		}
	})
	return all, nil
}

// Collect implements prometheus.Collector.
func (c *counter) Collect(out chan<- prometheus.Metric) {
	sums, err := c.sums()
	if err != nil {
		out <- prometheus.NewInvalidMetric(c.desc, err)
		return
	}
	for p, n := range sums {
		out <- prometheus.MustNewConstMetric(c.desc, prometheus.CounterValue, float64(n), p.Service.Namespace,
			p.Service.Name, p.Name, p.Protocol.String(), p.Family.String())
	}
}

// pressure collects the number of entries and the size of each map.
type pressure struct {
	usage               func() ([]bpf.Usage, error)
	entries, max, bytes *prometheus.Desc
}

func newPressure(usage func() ([]bpf.Usage, error)) *pressure {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("sluice_ebpf_map_"+name, help, []string{"map"}, nil)
	}
	return &pressure{
		usage:   usage,
		entries: desc("entries", "Entries of a map of the programs."),
		max: desc("max_entries",
			"Entries for which a map of the programs has room; maps that Sluice fills are made larger."),
		bytes: desc("bytes", "Memory of a map of the programs, as the kernel accounts it."),
	}
}

// Describe implements prometheus.Collector.
func (p *pressure) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{p.entries, p.max, p.bytes} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (p *pressure) Collect(out chan<- prometheus.Metric) {
	list, err := p.usage()
	if err != nil {
		out <- prometheus.NewInvalidMetric(p.entries, err)
		return
	}
	for _, u := range list {
		for desc, n := range map[*prometheus.Desc]int{p.entries: u.Entries, p.max: u.Max, p.bytes: u.Bytes} {
			if n >= 0 {
				out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(n), u.Map)
			}
		}
	}
}
