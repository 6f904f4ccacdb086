package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/follow/sizes"
	"github.com/sluice-proxy/sluice/internal/takeover"
)

// Readings are functions that each scrape calls. All are safe for concurrent use and
// return at once. A nil function has no series.
type Readings struct {
	Totals    func() cluster.Totals
	Backlog   func() cluster.Window
	Sizes     func() sizes.Sizes
	Connected func() bool

	Reloads            func() (accepted, refused int) // configuration files, since the process started
	KubeProxyRunning   func() bool
	Leftovers          func() map[takeover.Mechanism]int // rules by mechanism; what is not in it has none
	Removed            func() map[takeover.Mechanism]int // the same, since the start
	HealthPortFailures func() int
	HostSettingsFailed func() int

	// Contest reports whether another program keeps changing the rules, and its name
	// if it is known.
	Contest func() (program string, active bool)
}

// Read sets the Readings. Before it there are none.
func (m *Metrics) Read(r Readings) { m.readings.Store(&r) }

// put receives a value with its labels.
type put func(value float64, labels ...string)

// reading is a family that each scrape reads.
type reading struct {
	kind prometheus.ValueType
	from func(Readings, put)
}

const (
	counter = prometheus.CounterValue
	gauge   = prometheus.GaugeValue
)

// reader is the collector of one reading.
type reader struct {
	reading

	m    *Metrics
	desc *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (r *reader) Describe(out chan<- *prometheus.Desc) { out <- r.desc }

// Collect implements prometheus.Collector.
func (r *reader) Collect(out chan<- prometheus.Metric) {
	var from Readings
	if set := r.m.readings.Load(); set != nil {
		from = *set
	}
	r.from(from, func(value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(r.desc, r.kind, value, labels...)
	})
}

func endpointChanges(r Readings, p put) {
	number(r.Totals, func(t cluster.Totals) uint64 { return t.Slices }, p)
}

func serviceChanges(r Readings, p put) {
	number(r.Totals, func(t cluster.Totals) uint64 { return t.Services }, p)
}

func endpointsPending(r Readings, p put) {
	number(r.Backlog, func(w cluster.Window) int { return w.Slices }, p)
}

func servicesPending(r Readings, p put) {
	number(r.Backlog, func(w cluster.Window) int { return w.Services }, p)
}

func serviceCount(r Readings, p put) {
	number(r.Sizes, func(s sizes.Sizes) int { return s.Services }, p)
}

func endpointCount(r Readings, p put) {
	number(r.Sizes, func(s sizes.Sizes) int { return s.Backends }, p)
}

// noLocal is a gauge of each policy and family.
func (m *Metrics) noLocal(r Readings, p put) {
	if r.Sizes == nil {
		return
	}
	now := r.Sizes()
	for _, f := range m.opt.Families {
		p(float64(now.NoLocal(sizes.Internal, f)), "internal", f.String())
		p(float64(now.NoLocal(sizes.External, f)), "external", f.String())
	}
}

func connected(r Readings, p put)        { number(r.Connected, truth, p) }
func kubeProxyRunning(r Readings, p put) { number(r.KubeProxyRunning, truth, p) }

// reloads are of two series.
func reloads(r Readings, p put) {
	if r.Reloads == nil {
		return
	}
	accepted, refused := r.Reloads()
	p(float64(accepted), "ok")
	p(float64(refused), "refused")
}

func healthPortFailures(r Readings, p put) { number(r.HealthPortFailures, same, p) }
func hostSettingsFailed(r Readings, p put) { number(r.HostSettingsFailed, same, p) }

// unknownProgram is the label of a program whose name is not known, and noProgram
// that of none.
const (
	unknownProgram = "unknown"
	noProgram      = "none"
)

// contested is one series, whose label is the program.
func contested(r Readings, p put) {
	if r.Contest == nil {
		return
	}
	program, active := r.Contest()
	switch {
	case !active:
		program = noProgram
	case program == "":
		program = unknownProgram
	}
	p(float64(truth(active)), program)
}

func leftovers(r Readings, p put) { byMechanism(r.Leftovers, p) }
func takenOver(r Readings, p put) { byMechanism(r.Removed, p) }

func byMechanism(read func() map[takeover.Mechanism]int, p put) {
	if read == nil {
		return
	}
	found := read()
	for _, mechanism := range takeover.Mechanisms() {
		p(float64(found[mechanism]), string(mechanism))
	}
}

// number passes on one number of a reading, if there is one.
func number[R any, N int | uint64](read func() R, part func(R) N, p put) {
	if read != nil {
		p(float64(part(read())))
	}
}

func same[N int | uint64](n N) N { return n }

func truth(is bool) int { return map[bool]int{true: 1}[is] }

// lastQueued is when the last change came in, settled or not.
func (m *Metrics) lastQueued(r Readings, p put) {
	at := time.Unix(0, m.queued.Load())
	if r.Backlog != nil {
		if w := r.Backlog(); !w.Empty() {
			at = w.Last
		}
	}
	for _, f := range m.opt.Families {
		p(seconds(at), f.String())
	}
}

// seconds returns a time in seconds since 1970.
func seconds(at time.Time) float64 { return float64(at.UnixMicro()) / 1e6 }
