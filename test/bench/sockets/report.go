//go:build linux

package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/test/harness"
)

// report returns a table of the ways for each size, and one of all sizes.
func report(o options, all []result) string {
	var b strings.Builder
	fmt.Fprintf(&b,
		"%d rounds of %d calls, or of %.1f MB, by each way. Ratios are those of a round: the median, "+
			"and the interval that has the true one with a probability of 95%%.\n",
		o.rounds, o.calls, float64(o.stream)/1e6)
	for _, r := range all {
		b.WriteString("\n")
		line(&b, fmt.Sprint(r.services, " Services"), wayNames())
		line(&b, "---", slices.Repeat([]string{"---:"}, len(wayNames())))
		for _, m := range measurements() {
			r.write(&b, m.title)
		}
	}
	b.WriteString("\n")
	writeSizes(&b, all)
	return b.String()
}

// line writes a line of a table.
func line(b *strings.Builder, title string, cells []string) {
	fmt.Fprintf(b, "| %s | %s |\n", title, strings.Join(cells, " | "))
}

// write writes the lines of a measurement.
func (r result) write(b *strings.Builder, title string) {
	of := func(value func([]batch) string) (cells []string) {
		for _, name := range wayNames() {
			cells = append(cells, value(r.batches[title][name]))
		}
		return cells
	}
	number := median
	if title == streamTitle {
		line(b, title+", MB/s", of(func(list []batch) string { return span(rates(list), "%.0f") }))
		number = rate
	} else {
		for _, q := range []float64{0.5, 0.1, 0.9, 0.99} {
			name := fmt.Sprintf("— p%.0f, µs", 100*q)
			if q == 0.5 {
				name = title + ", p50, µs"
			}
			line(b, name, of(func(list []batch) string { return micros(harness.Quantile(times(list), q)) }))
		}
	}
	for _, name := range []string{direct, attached} {
		base := r.batches[title][name]
		line(b, "— ratio to "+name, of(func(list []batch) string { return interval(ratios(list, base, number)) }))
	}
}

func times(list []batch) (all []time.Duration) {
	for _, b := range list {
		all = append(all, b.took...)
	}
	return all
}

// median returns the median of a round, in nanoseconds.
func median(b batch) float64 { return float64(harness.Quantile(b.took, 0.5)) }

// rate returns the rate of a round, in MB/s.
func rate(b batch) float64 { return b.rate / 1e6 }

func rates(list []batch) (all []float64) {
	for _, b := range list {
		all = append(all, rate(b))
	}
	return all
}

func ratios(list, base []batch, number func(batch) float64) (all []float64) {
	for i := range list {
		all = append(all, number(list[i])/number(base[i]))
	}
	return all
}

// interval prints the median, and the interval that has the true one with a probability of 95%.
func interval(values []float64) string {
	out := harness.Outside(len(values))
	sorted := slices.Sorted(slices.Values(values))
	return fmt.Sprintf("%.3f (%.3f–%.3f)", middle(sorted), sorted[out], sorted[len(sorted)-1-out])
}

// middle returns the median of sorted values.
func middle(sorted []float64) float64 { return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2 }

// span prints the median, the minimum and the maximum.
func span(values []float64, format string) string {
	sorted := slices.Sorted(slices.Values(values))
	return fmt.Sprintf(format+" ("+format+"–"+format+")", middle(sorted), sorted[0], sorted[len(sorted)-1])
}

func micros(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d)/float64(time.Microsecond)) }

func writeSizes(b *strings.Builder, all []result) {
	of := func(value func(result) string) (cells []string) {
		for _, r := range all {
			cells = append(cells, value(r))
		}
		return cells
	}
	line(b, "Services", of(func(r result) string { return fmt.Sprint(r.services) }))
	line(b, "---", slices.Repeat([]string{"---:"}, len(all)))
	line(b, "first load, ms", of(func(r result) string {
		return fmt.Sprintf("%.1f", float64(r.load)/float64(time.Millisecond))
	}))
	for _, q := range []float64{0.5, 0.9, 0.99} {
		line(b, fmt.Sprintf("an endpoint replaced, p%.0f, µs", 100*q), of(func(r result) string {
			return micros(harness.Quantile(r.changes, q))
		}))
	}
	line(b, "maps of Services, KB", of(func(r result) string {
		return fmt.Sprintf("%.1f", float64(bytes(r.maps, ofServices))/1024)
	}))
	line(b, "maps that programs and other parts write, KB", of(func(r result) string {
		return fmt.Sprintf("%.1f", float64(bytes(r.maps, func(u bpf.Usage) bool { return !ofServices(u) }))/1024)
	}))
	line(b, "bytes per further Service", further(all))
}

// ofServices reports whether a map has entries of Services.
func ofServices(u bpf.Usage) bool {
	return slices.Contains([]string{bpf.Slots.String(), bpf.Members.String(), bpf.Frontends.String()}, u.Map)
}

// bytes adds the memory of some maps.
func bytes(list []bpf.Usage, some func(bpf.Usage) bool) (sum int) {
	for _, u := range list {
		if some(u) {
			sum += max(u.Bytes, 0)
		}
	}
	return sum
}

// further returns the memory of each additional Service, compared with the next smaller size.
func further(all []result) []string {
	cells := make([]string, len(all))
	for i := 1; i < len(all); i++ {
		if more := all[i].services - all[i-1].services; more != 0 {
			cells[i] = fmt.Sprintf("%.0f",
				float64(bytes(all[i].maps, ofServices)-bytes(all[i-1].maps, ofServices))/float64(more))
		}
	}
	return cells
}
