//go:build linux

package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// row is a line of the table: a number of each result, and its format.
type row struct {
	title string
	of    func(result) float64
	print func(float64) string
	ratio bool // print the ratio between sizes
}

func rows() []row {
	span := func(d func(result) time.Duration) func(result) float64 {
		return func(r result) float64 { return float64(d(r)) }
	}
	all := []row{
		{"cold load, ms", span(func(r result) time.Duration { return r.Cold.total() }), millis, false},
		{"— compile", span(func(r result) time.Duration { return r.Cold.Compile }), millis, false},
		{
			"— plan (with the look at an empty kernel)",
			span(func(r result) time.Duration { return r.Cold.Refresh + r.Cold.Plan }), millis, false,
		},
		{"— apply", span(func(r result) time.Duration { return r.Cold.Apply }), millis, false},
		{"— CPU", span(func(r result) time.Duration { return r.Cold.CPU }), millis, false},
		{"restart, nothing changed, ms", span(func(r result) time.Duration { return r.Adopt.total() }), millis, false},
		{"— compile", span(func(r result) time.Duration { return r.Adopt.Compile }), millis, false},
		{"— read the kernel", span(func(r result) time.Duration { return r.Adopt.Refresh }), millis, false},
		{
			"— plan (0 steps where the kernel keeps all)", span(func(r result) time.Duration { return r.Adopt.Plan }),
			millis, false,
		},
		{"— CPU", span(func(r result) time.Duration { return r.Adopt.CPU }), millis, false},
	}
	for _, kind := range []struct {
		title string
		of    func(result) changeStats
	}{
		{"endpoint replaced", func(r result) changeStats { return r.Replace }},
		{"scaled 3 to 4", func(r result) changeStats { return r.Grow }},
		{"scaled 4 to 3", func(r result) changeStats { return r.Shrink }},
		{"Service added", func(r result) changeStats { return r.Add }},
		{"Service deleted", func(r result) changeStats { return r.Delete }},
	} {
		all = append(all,
			row{kind.title + ", p50, µs", span(func(r result) time.Duration { return kind.of(r).P50 }), micros, true},
			row{"— p99, µs", span(func(r result) time.Duration { return kind.of(r).P99 }), micros, true},
			row{"— CPU, µs", span(func(r result) time.Duration { return kind.of(r).CPU }), micros, true},
			row{"— allocations", func(r result) float64 { return kind.of(r).Allocs }, count, true},
			row{"— KB allocated", func(r result) float64 { return kind.of(r).Bytes / 1024 }, decimal, true},
		)
	}
	return append(all,
		row{"heap after GC, MB", func(r result) float64 { return float64(r.Heap) / (1 << 20) }, decimal, false},
		row{"peak RSS, MB", func(r result) float64 { return float64(r.PeakRSS) / (1 << 20) }, decimal, false},
		row{"file descriptors", func(r result) float64 { return float64(r.Files) }, count, false},
	)
}

func millis(ns float64) string  { return fmt.Sprintf("%.1f", ns/1e6) }
func micros(ns float64) string  { return fmt.Sprintf("%.0f", ns/1e3) }
func count(n float64) string    { return fmt.Sprintf("%.0f", n) }
func decimal(mb float64) string { return fmt.Sprintf("%.1f", mb) }

// printSizes prints the medians of the runs of each size, and the ratios between sizes.
func printSizes(w io.Writer, sizes []int, results [][]result) error {
	var b strings.Builder
	b.WriteString("| Services of 3 endpoints |")
	for _, n := range sizes {
		fmt.Fprintf(&b, " %d |", n)
	}
	b.WriteString(" highest / lowest |\n|---|" + strings.Repeat("---:|", len(sizes)+1) + "\n")
	for _, r := range rows() {
		fmt.Fprintf(&b, "| %s |", r.title)
		var values []float64
		for i := range sizes {
			values = append(values, median(results[i], r.of))
			fmt.Fprintf(&b, " %s |", r.print(values[i]))
		}
		fmt.Fprintf(&b, " %s |\n", ratio(r, values))
	}
	further(&b, sizes, results)
	_, err := io.WriteString(w, b.String())
	return err
}

func ratio(r row, values []float64) string {
	low, high := slices.Min(values), slices.Max(values)
	if !r.ratio || low == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", high/low)
}

// further prints the cost of each additional Service between two sizes.
func further(b *strings.Builder, sizes []int, results [][]result) {
	for _, r := range []row{
		{"heap, bytes per further Service", func(r result) float64 { return float64(r.Heap) }, count, false},
		{"peak RSS, bytes per further Service", func(r result) float64 { return float64(r.PeakRSS) }, count, false},
	} {
		fmt.Fprintf(b, "| %s |", r.title)
		for i := range sizes {
			text := ""
			if i > 0 {
				more := median(results[i], r.of) - median(results[i-1], r.of)
				text = count(more / float64(sizes[i]-sizes[i-1]))
			}
			fmt.Fprintf(b, " %s |", text)
		}
		b.WriteString(" |\n")
	}
}

// median returns the median; for an even number of values the lower of the middle two.
func median[T any, N cmp.Ordered](list []T, of func(T) N) N {
	values := make([]N, 0, len(list))
	for _, v := range list {
		values = append(values, of(v))
	}
	slices.Sort(values)
	return values[(len(values)-1)/2]
}
