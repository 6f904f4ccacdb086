package ipvs

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

const (
	// readTime bounds how long a scrape reads the kernel.
	readTime = 5 * time.Second

	// mostCounted is the number of virtual servers up to which a scrape counts open connections: the kernel needs a
	// request for each, while it lists all counters at once.
	mostCounted = 10_000
)

// counter collects what the kernel counts, with a series for each Service port. It follows changes to find the ports
// of virtual servers.
type counter struct {
	servers Servers
	marks   func() *marks // of the plane; called by Applied only

	connections, received, sent, active, inactive *prometheus.Desc

	mu     sync.Mutex // not held while the kernel is read: Applied returns at once
	ports  map[ipvs.Server]route.PortID
	marked map[route.PortID]ipvs.Server // those of packet marks, which the plane may have forgotten

	scrape sync.Mutex
	last   map[ipvs.Server]ipvs.Stats  // at the last scrape
	sums   map[route.PortID]ipvs.Stats // which never fall, although virtual servers come and go
}

func newCounter(servers Servers, marks func() *marks) *counter {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("sluice_ipvs_"+name, help,
			[]string{"namespace", "service", "port", "protocol", "ip_family"}, nil)
	}
	return &counter{
		servers: servers, marks: marks,
		connections: desc("connections_total", "Connections and UDP flows to a Service port."),
		received:    desc("received_bytes_total", "Bytes that clients of a Service port sent."),
		sent:        desc("sent_bytes_total", "Bytes that were sent to clients of a Service port."),
		active:      desc("active_connections", "Established connections to a Service port."),
		inactive: desc("inactive_connections",
			"Connections to a Service port that are not established, such as those that ended recently, and UDP flows."),
		ports: map[ipvs.Server]route.PortID{}, marked: map[route.PortID]ipvs.Server{}, sums: map[route.PortID]ipvs.Stats{},
	}
}

// Applied implements plane.Follower.
func (c *counter) Applied(change route.Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	host, before := &change.Table.Host, &change.Table.Host
	if change.OldHost != nil {
		before = change.OldHost
	}
	change.Each(func(_ cluster.Name, old, _ *route.Service) {
		eachServer(old, before, func(s ipvs.Server, id route.PortID) {
			delete(c.ports, s)
			delete(c.ports, c.marked[id])
			delete(c.marked, id)
		})
	})
	marks := c.marks()
	change.Each(func(_ cluster.Name, _, now *route.Service) {
		eachServer(now, host, func(s ipvs.Server, id route.PortID) {
			c.ports[s] = id
			if mark, has := marks.of[id]; has {
				c.marked[id] = ipvs.Server{Addr: id.Family.Unspecified(), Mark: mark}
				c.ports[c.marked[id]] = id
			}
		})
	})
}

// eachServer calls fn with the virtual servers that a Service may have at addresses.
func eachServer(svc *route.Service, host *route.Host, fn func(ipvs.Server, route.PortID)) {
	if svc == nil {
		return
	}
	for i := range svc.Ports {
		p := &svc.Ports[i]
		id := p.ID(svc.Name)
		for j := range p.Frontends {
			f := &p.Frontends[j]
			for _, to := range addresses(host, p, f) {
				fn(ipvs.Server{Addr: to, Protocol: uint8(p.Protocol), Port: f.Port}, id)
			}
		}
	}
}

// Describe implements prometheus.Collector.
func (c *counter) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.connections, c.received, c.sent, c.active, c.inactive} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *counter) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), readTime)
	defer cancel()
	sums, open, err := c.read(ctx)
	for id, sum := range sums {
		out <- series(c.connections, prometheus.CounterValue, id, float64(sum.Connections))
		out <- series(c.received, prometheus.CounterValue, id, float64(sum.Received))
		out <- series(c.sent, prometheus.CounterValue, id, float64(sum.Sent))
	}
	for id, sum := range open {
		out <- series(c.active, prometheus.GaugeValue, id, float64(sum.Active))
		out <- series(c.inactive, prometheus.GaugeValue, id, float64(sum.Inactive))
	}
	if err != nil {
		out <- prometheus.NewInvalidMetric(c.connections, err)
	}
}

// Traffic implements Traffic of plane.Opened, for ports that have had connections. Of UDP all flows are live, as IPVS
// has no active ones.
func (c *counter) Traffic(ctx context.Context, _ *route.Snapshot) (plane.Counted, error) {
	sums, open, err := c.read(ctx)
	if err != nil {
		return nil, err
	}
	all := plane.Counted{}
	for id, sum := range sums {
		if sum.Connections == 0 {
			continue
		}
		t := plane.Traffic{
			plane.Connections: sum.Connections, plane.Received: sum.Received, plane.Sent: sum.Sent,
		}
		now, known := open[id]
		if known {
			t[plane.Live] = uint64(now.Active)
		}
		if known && id.Protocol == cluster.UDP {
			t[plane.Live] += uint64(now.Inactive)
		}
		all[id] = plane.PortTraffic{Traffic: t}
	}
	return all, nil
}

// read returns what the kernel has counted for each port, and its connections now; without those if there are too many
// virtual servers.
func (c *counter) read(ctx context.Context) (
	sums map[route.PortID]ipvs.Stats, open map[route.PortID]ipvs.Destination, err error,
) {
	c.scrape.Lock()
	defer c.scrape.Unlock()
	list, err := c.servers.List(ctx)
	if err != nil {
		return nil, nil, err
	}
	servers, ids := c.count(list)
	if len(servers) > mostCounted {
		return c.sums, nil, nil
	}
	dests, err := c.servers.Destinations(ctx, servers...)
	if err != nil {
		return nil, nil, err
	}
	open = map[route.PortID]ipvs.Destination{}
	for id := range c.sums {
		open[id] = ipvs.Destination{}
	}
	for i, id := range ids {
		sum := open[id]
		for _, d := range dests[i] {
			sum.Active, sum.Inactive = sum.Active+d.Active, sum.Inactive+d.Inactive
		}
		open[id] = sum
	}
	return c.sums, open, nil
}

// count adds what the kernel counted since the last scrape. It returns the virtual servers of Services that have had
// connections, with the port of each.
func (c *counter) count(list []ipvs.Listed) (servers []ipvs.Server, ids []route.PortID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last, sums := map[ipvs.Server]ipvs.Stats{}, map[route.PortID]ipvs.Stats{}
	for _, id := range c.ports {
		sums[id] = c.sums[id]
	}
	for _, s := range list {
		id, known := c.ports[s.Server]
		if !known {
			continue
		}
		before := c.last[s.Server]
		if s.Connections < before.Connections { // the virtual server is a new one
			before = ipvs.Stats{}
		}
		sum := sums[id]
		sum.Connections += s.Connections - before.Connections
		sum.Received += s.Received - before.Received
		sum.Sent += s.Sent - before.Sent
		sums[id] = sum
		last[s.Server] = s.Stats
		if s.Connections > 0 {
			servers, ids = append(servers, s.Server), append(ids, id)
		}
	}
	c.last, c.sums = last, sums
	return servers, ids
}

func series(d *prometheus.Desc, kind prometheus.ValueType, id route.PortID, n float64) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, kind, n,
		id.Service.Namespace, id.Service.Name, id.Name, id.Protocol.String(), id.Family.String())
}
