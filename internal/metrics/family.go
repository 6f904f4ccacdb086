package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/metrics/vec"
)

// family is one row of the table of all families.
type family struct {
	name, help string
	labels     []string
	series     [][]string // label values of the series that exist from the start, at 0
	buckets    []float64  // of a histogram

	// into determines the type: a pointer to one of the vectors, or a reading.
	into any
}

// register makes the families and returns how many there are.
func (m *Metrics) register(in *prometheus.Registry, table []family) int {
	for _, f := range table {
		c := f.collector(m)
		m.families[f.name] = c
		in.MustRegister(c)
	}
	return len(table)
}

// collector makes the collector of the row.
func (f family) collector(m *Metrics) prometheus.Collector {
	d := vec.Desc{Name: f.name, Help: f.help, Labels: f.labels, Series: f.series, Buckets: f.buckets}
	switch into := f.into.(type) {
	case **prometheus.CounterVec:
		*into = d.Counter()
		return *into
	case **prometheus.GaugeVec:
		*into = d.Gauge()
		return *into
	case **prometheus.HistogramVec:
		*into = d.Histogram()
		return *into
	default:
		return &reader{m: m, desc: prometheus.NewDesc(f.name, f.help, f.labels, nil), reading: f.into.(reading)}
	}
}

// words returns values as label values.
func words[T ~string](of []T) []string {
	var out []string
	for _, v := range of {
		out = append(out, string(v))
	}
	return out
}
