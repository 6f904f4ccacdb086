package ebpf

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// withDurations sets Durations if the kernel runs the program that measures them.
func withDurations(s plane.Setup, o bpf.Options) bpf.Options {
	if err := bpf.TryDurations(o); err != nil {
		s.Log.Warn("The durations of connects are not measured: the cgroup does not take a program of type sockops, "+
			"such as beside one that allows no others", "error", err)
		return o
	}
	o.Durations = true
	return o
}

// durationsOf returns the part that collects the durations of connects. It is empty if nothing measures them.
func durationsOf(o bpf.Options, conn *bpf.Conn, ports *poolPorts) plane.Part {
	if !o.Durations {
		return plane.Part{}
	}
	return plane.Part{Metrics: []prometheus.Collector{newDurations(conn.Durations, ports)}}
}

// mostNamed is how many Services have a histogram of their own.
const mostNamed = 50

// durations collects a histogram for each of the busiest Services, and one for all others. A connection stays in the
// histogram in which it was collected first: so none shrinks or jumps when another Service gets one of its own.
type durations struct {
	read  func() (map[bpf.Pool]bpf.Durations, error)
	ports *poolPorts
	desc  *prometheus.Desc

	mu     sync.Mutex
	before map[bpf.Pool]bpf.Durations // of the last collection
	named  map[cluster.Name]*bpf.Durations
	others bpf.Durations
}

func newDurations(read func() (map[bpf.Pool]bpf.Durations, error), ports *poolPorts) *durations {
	desc := prometheus.NewDesc("sluice_service_connect_duration_seconds",
		"Time from connect() until a TCP connection through a Service was established, with SYNs that were sent again. "+
			"The 50 busiest Services have series; the Service \"other\" without a namespace has the rest.",
		[]string{"namespace", "service"}, nil)
	return &durations{read: read, ports: ports, desc: desc, named: map[cluster.Name]*bpf.Durations{}}
}

// Describe implements prometheus.Collector.
func (d *durations) Describe(out chan<- *prometheus.Desc) { out <- d.desc }

// Collect implements prometheus.Collector.
func (d *durations) Collect(out chan<- prometheus.Metric) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.update(); err != nil {
		out <- prometheus.NewInvalidMetric(d.desc, err)
		return
	}
	for name, sum := range d.named {
		out <- d.histogram(sum, name)
	}
	if d.others.Count() > 0 {
		out <- d.histogram(&d.others, cluster.Name{Name: "other"})
	}
}

// update adds the connections since the last collection to the histograms.
func (d *durations) update() error {
	now, err := d.read()
	if err != nil {
		return err
	}
	all, since := map[cluster.Name]uint64{}, map[cluster.Name]*bpf.Durations{}
	d.ports.each(maps.Keys(now), func(pool bpf.Pool, port route.PortID) {
		n := now[pool]
		if since[port.Service] == nil {
			since[port.Service] = &bpf.Durations{}
		}
		all[port.Service] += n.Count()
		since[port.Service].Add(n.Since(d.before[pool]))
	})
	d.before = now
	named := map[cluster.Name]*bpf.Durations{}
	for _, name := range d.busiest(all) {
		if named[name] = d.named[name]; named[name] == nil {
			named[name] = &bpf.Durations{}
		}
	}
	d.named = named
	for name, n := range since {
		if own := d.named[name]; own != nil {
			own.Add(*n)
		} else {
			d.others.Add(*n)
		}
	}
	return nil
}

// busiest returns the Services with the most connections. One that has a histogram keeps it until another has had twice
// as many.
func (d *durations) busiest(all map[cluster.Name]uint64) []cluster.Name {
	weight := func(name cluster.Name) uint64 {
		if d.named[name] != nil {
			return 2 * all[name]
		}
		return all[name]
	}
	names := slices.SortedFunc(maps.Keys(all), func(a, b cluster.Name) int {
		return cmp.Or(cmp.Compare(weight(b), weight(a)), a.Compare(b))
	})
	return names[:min(len(names), mostNamed)]
}

func (d *durations) histogram(n *bpf.Durations, name cluster.Name) prometheus.Metric {
	upTo, buckets := uint64(0), map[float64]uint64{}
	for i, bound := range bpf.DurationBounds() {
		upTo += n.Buckets[i]
		buckets[float64(bound.Microseconds())/1e6] = upTo
	}
	return prometheus.MustNewConstHistogram(d.desc, n.Count(), n.Sum.Seconds(), buckets, name.Namespace, name.Name)
}
