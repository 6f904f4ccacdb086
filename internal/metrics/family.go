package metrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/route"
)

// family is one row of the table of all families.
type family struct {
	name, help string
	labels     []string
	series     [][]string // label values of the series that exist from the start, at 0
	buckets    []float64  // of a histogram
	modes      []string   // that have it; nil: all
	failures   bool       // it counts the writes that failed, by IP family

	// into determines the type: a pointer to one of the vectors, or a reading.
	into any
}

// register makes the families of the mode and returns how many there are.
// Families of other modes are made but not registered.
func (m *Metrics) register(in *prometheus.Registry, table []family) int {
	shown := 0
	for _, f := range table {
		c := f.collector(m)
		m.families[f.name] = c
		if f.modes != nil && !slices.Contains(f.modes, m.opt.Mode) {
			continue
		}
		if f.failures {
			m.failing = append(m.failing, *f.into.(**prometheus.CounterVec))
		}
		in.MustRegister(c)
		shown++
	}
	return shown
}

// collector makes the collector of the row.
func (f family) collector(m *Metrics) prometheus.Collector {
	series := f.series
	if f.labels == nil {
		series = [][]string{nil}
	}
	switch into := f.into.(type) {
	case **prometheus.CounterVec:
		*into = prometheus.NewCounterVec(prometheus.CounterOpts{Name: f.name, Help: f.help}, f.labels)
		for _, s := range series {
			(*into).WithLabelValues(s...)
		}
		return *into
	case **prometheus.GaugeVec:
		*into = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: f.name, Help: f.help}, f.labels)
		for _, s := range series {
			(*into).WithLabelValues(s...)
		}
		return *into
	case **prometheus.HistogramVec:
		*into = prometheus.NewHistogramVec(f.histogram(), f.labels)
		for _, s := range series {
			(*into).WithLabelValues(s...)
		}
		return *into
	default:
		return &reader{m: m, desc: prometheus.NewDesc(f.name, f.help, f.labels, nil), reading: f.into.(reading)}
	}
}

// histogram has native buckets besides the usual ones, for clients that ask
// for them, as finely grained as Kubernetes' own.
func (f family) histogram() prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Name: f.name, Help: f.help, Buckets: f.buckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160,
	}
}

// each returns all combinations of label values.
func each(lists ...[]string) [][]string {
	all := [][]string{nil}
	for _, list := range lists {
		var longer [][]string
		for _, before := range all {
			for _, v := range list {
				longer = append(longer, append(slices.Clip(before), v))
			}
		}
		all = longer
	}
	return all
}

// words returns values as label values.
func words[T ~string](of []T) []string {
	var out []string
	for _, v := range of {
		out = append(out, string(v))
	}
	return out
}

// familyNames are the label values of the enabled IP families.
func familyNames(families []route.Family) []string {
	var out []string
	for _, f := range families {
		out = append(out, f.String())
	}
	return out
}
