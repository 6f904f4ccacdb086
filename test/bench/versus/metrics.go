//go:build linux

package main

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// metrics are the metrics of a proxy by name.
type metrics map[string]*dto.MetricFamily

func parseMetrics(text []byte) (metrics, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	return families, nil
}

// highest returns the highest value of all series of a gauge; 0 if there is none.
func (m metrics) highest(name string) float64 {
	high := 0.0
	for _, series := range m[name].GetMetric() {
		high = max(high, series.GetGauge().GetValue())
	}
	return high
}

// bucket is the number of observations of at most le.
type bucket struct{ le, count float64 }

// histogram returns the sum of all series of a histogram.
func (m metrics) histogram(name string) []bucket {
	sums := map[float64]float64{}
	for _, series := range m[name].GetMetric() {
		for _, b := range series.GetHistogram().GetBucket() {
			sums[b.GetUpperBound()] += float64(b.GetCumulativeCount())
		}
	}
	out := make([]bucket, 0, len(sums))
	for le, n := range sums {
		out = append(out, bucket{le, n})
	}
	slices.SortFunc(out, func(a, b bucket) int { return cmp.Compare(a.le, b.le) })
	return out
}

// since returns the observations in after that are not in before.
func since(before, after []bucket) []bucket {
	out := slices.Clone(after)
	for i := range out {
		if i < len(before) {
			out[i].count -= before[i].count
		}
	}
	return out
}

// quantile interpolates within a bucket. For the last bucket, which has no upper bound, it returns the lower one.
func quantile(buckets []bucket, q float64) time.Duration {
	if len(buckets) == 0 || buckets[len(buckets)-1].count == 0 {
		return 0
	}
	rank, low := q*buckets[len(buckets)-1].count, bucket{}
	for _, b := range buckets {
		if b.count >= rank && b.count > low.count {
			if math.IsInf(b.le, 1) {
				break
			}
			return seconds(low.le + (b.le-low.le)*(rank-low.count)/(b.count-low.count))
		}
		low = b
	}
	return seconds(low.le)
}

// atLeast returns the lower bound of the bucket with the largest observation.
func atLeast(buckets []bucket) time.Duration {
	total, lower, low := 0.0, 0.0, 0.0
	for _, b := range buckets {
		if b.count > total {
			total, lower = b.count, low
		}
		low = b.le
	}
	return seconds(lower)
}

func seconds(s float64) time.Duration { return time.Duration(s * 1e9) }
