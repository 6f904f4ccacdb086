//go:build linux

package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/test/harness"
)

// row is a line of the table: a value of each sample of one measurement.
type row struct {
	title string
	work
	value func(sample) float64
	proxy bool // the value is of the proxy process, so direct connections have none
}

func tableRows(o options) []row {
	var rows []row
	for _, w := range works(o) {
		switch w.Kind {
		case requests:
			rows = append(rows,
				row{title: fmt.Sprintf("kept connections: %d, requests/s", w.Connections), work: w, value: sample.rate},
				row{title: "— p50, µs", work: w, value: func(s sample) float64 { return micros(s.P50) }},
				row{title: "— p99, µs", work: w, value: func(s sample) float64 { return micros(s.P99) }},
				row{title: "— CPU of the proxy for a request, µs", work: w, value: sample.cost, proxy: true},
				row{
					title: "— resident memory of the proxy, MB", work: w, value: func(s sample) float64 {
						return float64(s.Memory) / (1 << 20)
					}, proxy: true,
				},
			)
		case streams:
			rows = append(rows,
				row{
					title: fmt.Sprintf("streams: %d, MB/s", w.Connections), work: w,
					value: func(s sample) float64 { return s.rate() / 1e6 },
				},
				row{
					title: "— CPU of the proxy for a GB, ms", work: w,
					value: func(s sample) float64 { return s.cost() * 1e6 }, proxy: true,
				},
			)
		case connects:
			rows = append(rows,
				row{title: fmt.Sprintf("clients: %d, new connections/s", w.Connections), work: w, value: sample.rate},
				row{title: "— p50, µs", work: w, value: func(s sample) float64 { return micros(s.P50) }},
				row{title: "— p99, µs", work: w, value: func(s sample) float64 { return micros(s.P99) }},
				row{title: "— CPU of the proxy for a connection, µs", work: w, value: sample.cost, proxy: true},
			)
		}
		rows = append(rows, row{title: "— failed", work: w, value: func(s sample) float64 { return float64(s.Failed) }})
	}
	return rows
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// rate returns the operations or bytes per second.
func (s sample) rate() float64 { return float64(s.Done) / s.Took.Seconds() }

// cost returns the CPU time of the proxy, in microseconds, for each thing done.
func (s sample) cost() float64 { return micros(s.CPU) / float64(max(s.Done, 1)) }

// table returns the Markdown table: median (minimum to maximum) of the rounds, and if HAProxy was
// measured, the ratio between each userspace plane and HAProxy in the same round, as the median and
// the interval that has the true median in 95% of all runs. Rows of failures without any are left out.
func table(contenders []*contender, rows []row, all results) string {
	var b strings.Builder
	b.WriteString("| |")
	for _, c := range contenders {
		fmt.Fprintf(&b, " %s |", c.name)
	}
	var compared []string
	for _, name := range planes() {
		if all[haproxy] != nil && all[name] != nil {
			compared = append(compared, name)
			fmt.Fprintf(&b, " %s / haproxy |", name)
		}
	}
	fmt.Fprintf(&b, "\n|---|%s\n", strings.Repeat("---:|", len(contenders)+len(compared)))
	for _, r := range rows {
		if r.title == "— failed" && r.isZero(all) {
			continue
		}
		fmt.Fprintf(&b, "| %s |", r.title)
		for _, c := range contenders {
			text := ""
			if !r.proxy || c.name == haproxy || slices.Contains(planes(), c.name) {
				text = span(r.values(all[c.name]), 0, number)
			}
			fmt.Fprintf(&b, " %s |", text)
		}
		for _, name := range compared {
			list := ratios(r.values(all[name]), r.values(all[haproxy]))
			fmt.Fprintf(&b, " %s |", span(list, harness.Outside(len(list)), func(v float64) string {
				return fmt.Sprintf("%.3f", v)
			}))
		}
		b.WriteString("\n")
	}
	return b.String()
}

func (r row) values(of map[work][]sample) []float64 {
	var list []float64
	for _, s := range of[r.work] {
		list = append(list, r.value(s))
	}
	return list
}

func (r row) isZero(all results) bool {
	for _, of := range all {
		if slices.ContainsFunc(r.values(of), func(v float64) bool { return v != 0 }) {
			return false
		}
	}
	return true
}

// ratios returns a/b of each round in which b is not 0.
func ratios(a, b []float64) []float64 {
	var list []float64
	for i := range min(len(a), len(b)) {
		if b[i] != 0 {
			list = append(list, a[i]/b[i])
		}
	}
	return list
}

// span prints the median, and the lowest and highest values without some at each end; nothing if there are no values.
func span(values []float64, without int, format func(float64) string) string {
	if len(values) == 0 {
		return ""
	}
	slices.Sort(values)
	median := (values[(len(values)-1)/2] + values[len(values)/2]) / 2
	return fmt.Sprintf("%s (%s–%s)", format(median), format(values[without]), format(values[len(values)-1-without]))
}

// number prints three digits or more.
func number(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
