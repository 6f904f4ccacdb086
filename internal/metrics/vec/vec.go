// Package vec makes families of metrics whose series are there from the start, at 0.
package vec

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
)

// Desc describes a family. Series has the label values of the series that are there
// from the start; a family without labels has one series.
type Desc struct {
	Name, Help string
	Labels     []string
	Series     [][]string
	Buckets    []float64 // of a histogram
}

// ByFamily completes a Desc for a family with one series for each IP family.
func (d Desc) ByFamily(families []route.Family) Desc {
	d.Labels, d.Series = []string{FamilyLabel}, Each(text.Strings(families))
	return d
}

// FamilyLabel is the label of the IP family.
const FamilyLabel = "ip_family"

// Durations are buckets from 1 ms to 16 s.
func Durations() []float64 { return prometheus.ExponentialBuckets(0.001, 2, 15) }

// Each returns all combinations of label values.
func Each(lists ...[]string) [][]string {
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

// Counter makes a family of counters.
func (d Desc) Counter() *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: d.Name, Help: d.Help}, d.Labels)
	begin(d, v.WithLabelValues)
	return v
}

// Gauge makes a family of gauges.
func (d Desc) Gauge() *prometheus.GaugeVec {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: d.Name, Help: d.Help}, d.Labels)
	begin(d, v.WithLabelValues)
	return v
}

// Histogram makes a family of histograms. Besides the usual buckets they have native
// ones, as finely grained as Kubernetes' own, for clients that ask for these.
func (d Desc) Histogram() *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: d.Name, Help: d.Help, Buckets: d.Buckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160,
	}, d.Labels)
	begin(d, v.WithLabelValues)
	return v
}

// begin makes the series that are there from the start.
func begin[T any](d Desc, series func(labels ...string) T) {
	if d.Labels == nil {
		series()
	}
	for _, labels := range d.Series {
		series(labels...)
	}
}
