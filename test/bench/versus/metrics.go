//go:build linux

package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// metrics are what a proxy says about itself.
type metrics struct{ samples []sample }

type sample struct {
	name, labels string
	value        float64
}

// readMetrics reads the text format of Prometheus.
func readMetrics(text []byte) (metrics, error) {
	var m metrics
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		cut := strings.LastIndexByte(line, ' ')
		if cut < 0 {
			return m, fmt.Errorf("read metrics: no value in %q", line)
		}
		value, err := strconv.ParseFloat(line[cut+1:], 64)
		if err != nil {
			return m, fmt.Errorf("read metrics: %q: %w", line, err)
		}
		name, labels, _ := strings.Cut(line[:cut], "{")
		m.samples = append(m.samples, sample{name, labels, value})
	}
	return m, nil
}

// max is the highest value of a name, with whatever labels; 0 if there is none.
func (m metrics) max(name string) float64 {
	high := 0.0
	for _, s := range m.samples {
		if s.name == name {
			high = max(high, s.value)
		}
	}
	return high
}

// bucket is how many observations were at most so large.
type bucket struct{ le, count float64 }

// histogram is that of a name, all series of it as one.
func (m metrics) histogram(name string) []bucket {
	sums := map[float64]float64{}
	for _, s := range m.samples {
		if s.name != name+"_bucket" {
			continue
		}
		_, rest, _ := strings.Cut(s.labels, `le="`)
		text, _, _ := strings.Cut(rest, `"`)
		if le, err := strconv.ParseFloat(text, 64); err == nil {
			sums[le] += s.value
		}
	}
	out := make([]bucket, 0, len(sums))
	for le, n := range sums {
		out = append(out, bucket{le, n})
	}
	slices.SortFunc(out, func(a, b bucket) int { return cmp.Compare(a.le, b.le) })
	return out
}

// since is what came into a histogram since before.
func since(before, after []bucket) []bucket {
	out := slices.Clone(after)
	for i := range out {
		if i < len(before) {
			out[i].count -= before[i].count
		}
	}
	return out
}

// quantile is where a share of the observations ends, evenly spread in its
// bucket. The highest bucket has no end, so its beginning stands for it.
func quantile(buckets []bucket, q float64) time.Duration {
	if len(buckets) == 0 || buckets[len(buckets)-1].count == 0 {
		return 0
	}
	rank, low := q*buckets[len(buckets)-1].count, bucket{}
	for _, b := range buckets {
		if b.count >= rank && b.count > low.count {
			if math.IsInf(b.le, 1) {
				return seconds(low.le)
			}
			return seconds(low.le + (b.le-low.le)*(rank-low.count)/(b.count-low.count))
		}
		low = b
	}
	return seconds(low.le)
}

// atLeast is the beginning of the bucket with the largest observation: of that
// beyond all buckets the end is not known.
func atLeast(buckets []bucket) time.Duration {
	total, begin, low := 0.0, 0.0, 0.0
	for _, b := range buckets {
		if b.count > total {
			total, begin = b.count, low
		}
		low = b.le
	}
	return seconds(begin)
}

func seconds(s float64) time.Duration { return time.Duration(s * 1e9) }
