package ebpf

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/route"
)

// counter collects a series for each Service port to which sockets have connected. It follows changes to find the
// ports of pools, as the id of a pool is a hash of the name.
type counter struct {
	counts func() (map[bpf.Pool]uint64, error)
	desc   *prometheus.Desc

	mu    sync.Mutex
	ports map[bpf.Pool]route.PortID // by the pool of all endpoints
}

func newCounter(counts func() (map[bpf.Pool]uint64, error)) *counter {
	desc := prometheus.NewDesc("sluice_ebpf_connections_total",
		"Connections and UDP flows to a Service port that were decided at sockets of this node.",
		[]string{"namespace", "service", "port", "protocol", "ip_family"}, nil)
	return &counter{counts: counts, ports: map[bpf.Pool]route.PortID{}, desc: desc}
}

// Applied implements plane.Follower.
func (c *counter) Applied(change route.Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range change.Touched {
		for _, p := range portsOf(t.Old) {
			delete(c.ports, p.pools[route.Cluster].id)
		}
		for _, p := range portsOf(t.New) {
			c.ports[p.pools[route.Cluster].id] = p.ID(t.Name)
		}
	}
}

// Describe implements prometheus.Collector.
func (c *counter) Describe(out chan<- *prometheus.Desc) { out <- c.desc }

// sums returns how many connections each port has had, if any.
func (c *counter) sums() (map[route.PortID]uint64, error) {
	counts, err := c.counts()
	if err != nil {
		return nil, err
	}
	sums := map[route.PortID]uint64{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, n := range counts {
		id[15] = byte(route.Cluster) + 1 // as in poolID
		if p, known := c.ports[id]; known {
			sums[p] += n
		}
	}
	return sums, nil
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
