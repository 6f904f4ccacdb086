//go:build linux

package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/test/bench/filled"
)

// row is a line of a table.
type row struct {
	key, title string
	print      func(float64) string
}

// value returns the value of a result; NaN if it was not measured.
func (r row) value(of *result) float64 {
	if v, ok := of.Values[r.key]; ok {
		return v
	}
	return math.NaN()
}

// observations is the title of the number of observations, which has no ratio.
const observations = "— n"

// spreads returns the rows of a distribution.
func spreads(key, title string) []row {
	return []row{
		{key + ".p50", title + ", p50", duration},
		{key + ".p90", "— p90", duration},
		{key + ".p99", "— p99", duration},
		{key + ".max", "— max", duration},
		{key + ".n", observations, count},
	}
}

func rows() []row {
	return slices.Concat(
		[]row{
			{"bare.list", "bare client: one List of each kind from the watch cache", duration},
			{"bare.list.cpu", "— its CPU", duration},
			{"bare.list.server", "— CPU of the API server", duration},
			{"bare.stream", "— with a streaming list instead", duration},
			{"bare.stream.cpu", "— its CPU", duration},
			{"bare.stream.server", "— CPU of the API server", duration},
			{"start.reachable", "process start to every probed Service reachable", duration},
			{"start.bare", "— divided by the List of the bare client", decimal},
			{"start.synced", "— to everything written", duration},
			{"start.cpu", "— CPU", duration},
			{"start.peak", "— peak memory, largest child included", megabytes},
			{"idle", "idle, % of a core", decimal},
		},
		spreads("change", "one endpoint change: API write to first new connection"),
		[]row{
			{"change.kernel.p50", "— of which event in the process to kernel, p50", duration},
			{"change.kernel.p99", "— p99", duration},
			{"change.cpu", "— CPU for each", duration},
			{"ratio.p50", "connect() through a Service / direct, p50", decimal},
			{"ratio.p90", "— p90", decimal},
			{"connect.p50", "— through a Service, p50", duration},
			{"connect.n", observations, count},
			{"churn.rate", "churn: writes a second", decimal},
			{"churn.cpu", "— CPU, % of a core", decimal},
			{"churn.request.p50", "— answer of the API server, p50", duration},
			{"churn.request.p99", "— p99", duration},
			{"churn.kernel.p50", "— event in the process to kernel, p50", duration},
			{"churn.kernel.p99", "— p99", duration},
		},
		spreads("churn.seen", "— API write to first new connection"),
		[]row{
			{"churn.unseen", "— not seen 30 s after the end", count},
			{"rolling.endpoints", "rolling update: endpoints", count},
			{"rolling.total", "— first write to last connection on an old endpoint", duration},
			{"rolling.writing", "— of which the writes took", duration},
			{"rolling.cpu", "— CPU", duration},
			{"rolling.sync", "— longest sync, at least", duration},
		},
		spreads("rolling.step", "— compile and apply of a sync"),
		spreads("rolling.connect", "— new connections meanwhile"),
		[]row{
			{"rolling.failed", "— failed", count},
			{"peak", "peak memory of all so far, largest child included", megabytes},
			{"peak.process", "— of the process alone", megabytes},
			{"restart.synced", "restart, nothing changed: to nothing left to do", duration},
			{"restart.bare", "— divided by the List of the bare client", decimal},
			{"restart.cpu", "— CPU", duration},
			{"restart.peak", "— peak memory, largest child included", megabytes},
		},
	)
}

// printReport prints a table for each size, the growth of Sluice with the size, and its heap profile.
func printReport(w io.Writer, results []*result) error {
	names := proxyNames()
	slices.SortFunc(results, func(a, b *result) int {
		return cmp.Or(cmp.Compare(a.Services, b.Services),
			cmp.Compare(slices.Index(names, a.Proxy), slices.Index(names, b.Proxy)))
	})
	var b strings.Builder
	for first := 0; first < len(results); {
		size, end := results[first].Services, first
		for end < len(results) && results[end].Services == size {
			end++
		}
		fmt.Fprintf(&b, "### %d Services of %d endpoints\n\n", size, filled.Endpoints)
		sizeTable(&b, results[first:end])
		first = end
	}
	growthTable(&b, slices.DeleteFunc(slices.Clone(results), func(r *result) bool { return r.Proxy != sluice }))
	for _, r := range results {
		if r.Heap != "" {
			fmt.Fprintf(&b, "### Where the memory of %s is with %d Services\n\n```\n%s\n```\n\n",
				titleOf(r.Proxy), r.Services, r.Heap)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// sizeTable prints a column for each proxy. Each value of kube-proxy is followed by its ratio to Sluice's value,
// which is in the first column.
func sizeTable(b *strings.Builder, columns []*result) {
	b.WriteString("| |")
	for _, c := range columns {
		fmt.Fprintf(b, " %s |", titleOf(c.Proxy))
	}
	b.WriteString("\n|---|" + strings.Repeat("---:|", len(columns)) + "\n")
	for _, r := range rows() {
		cells, measured := "", false
		for _, c := range columns {
			value := r.value(c)
			measured = measured || !math.IsNaN(value)
			cells += " " + r.cell(c) + r.ratio(columns[0], c) + " |"
		}
		if measured {
			fmt.Fprintf(b, "| %s |%s\n", r.title, cells)
		}
	}
	b.WriteString("\n")
	for _, c := range columns {
		fmt.Fprintf(b, "* %s: %s, measured %s.", titleOf(c.Proxy), c.Versions, c.When.Format(time.DateOnly))
		if c.NotReached != "" {
			fmt.Fprintf(b, " **Not reached**: %s.", c.NotReached)
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
}

func (r row) cell(of *result) string {
	if value := r.value(of); !math.IsNaN(value) {
		return r.print(value)
	}
	return ""
}

func (r row) ratio(first, other *result) string {
	base, value := r.value(first), r.value(other)
	if !isSluice(first.Proxy) || isSluice(other.Proxy) || !(base > 0 && value > 0) || r.title == observations {
		return ""
	}
	return fmt.Sprintf(" (%s)", times(value/base))
}

// growthTable compares the sizes of Sluice.
func growthTable(b *strings.Builder, list []*result) {
	if len(list) < 2 {
		return
	}
	b.WriteString("### Sluice by number of Services\n\n| |")
	for _, r := range list {
		fmt.Fprintf(b, " %d |", r.Services)
	}
	b.WriteString(" last / first |\n|---|" + strings.Repeat("---:|", len(list)+1) + "\n")
	for _, r := range rows() {
		first, last := r.value(list[0]), r.value(list[len(list)-1])
		if !(first > 0 && last > 0) || r.title == observations {
			continue
		}
		fmt.Fprintf(b, "| %s |", r.title)
		for _, column := range list {
			fmt.Fprintf(b, " %s |", r.cell(column))
		}
		fmt.Fprintf(b, " %.2f |\n", last/first)
	}
	b.WriteString("\n")
}

func duration(ns float64) string {
	switch d := time.Duration(ns); {
	case d >= 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d >= time.Second:
		return fmt.Sprintf("%.2f s", d.Seconds())
	case d >= 100*time.Millisecond:
		return fmt.Sprintf("%.0f ms", ns/1e6)
	case d >= time.Millisecond:
		return fmt.Sprintf("%.1f ms", ns/1e6)
	default:
		return fmt.Sprintf("%.0f µs", ns/1e3)
	}
}

func count(n float64) string     { return fmt.Sprintf("%.0f", n) }
func decimal(n float64) string   { return fmt.Sprintf("%.2f", n) }
func megabytes(n float64) string { return fmt.Sprintf("%.0f MB", n/(1<<20)) }

// times formats a ratio with its significant digits.
func times(ratio float64) string {
	if ratio >= 10 {
		return fmt.Sprintf("%.0fx", ratio)
	}
	return fmt.Sprintf("%.1fx", ratio)
}
