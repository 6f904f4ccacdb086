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
)

// row is one line of a table. Of a result that has not measured it, of is NaN.
type row struct {
	title string
	of    func(result) float64
	print func(float64) string
}

// span is a row of a duration of a part. None is one that was not measured.
func span[T any](title string, part func(result) *T, of func(*T) time.Duration) row {
	return number(title, part, func(p *T) float64 { return known(of(p)) }, duration)
}

func number[T any](title string, part func(result) *T, of func(*T) float64, print func(float64) string) row {
	return row{title, func(r result) float64 {
		p := part(r)
		if p == nil {
			return math.NaN()
		}
		return of(p)
	}, print}
}

// many is the title of how often something was done.
const many = "— n"

// spreads are the rows of a spread.
func spreads[T any](title string, part func(result) *T, of func(*T) spread) []row {
	return []row{
		span(title+", p50", part, func(p *T) time.Duration { return of(p).P50 }),
		span("— p90", part, func(p *T) time.Duration { return of(p).P90 }),
		span("— p99", part, func(p *T) time.Duration { return of(p).P99 }),
		span("— max", part, func(p *T) time.Duration { return of(p).Max }),
		number(many, part, func(p *T) float64 { return known(of(p).N) }, count),
	}
}

// known is a number that is not there if it is 0.
func known[N int | time.Duration](n N) float64 {
	if n == 0 {
		return math.NaN()
	}
	return float64(n)
}

func start(r result) *started     { return r.Start }
func idling(r result) *idled      { return r.Idle }
func change(r result) *changed    { return r.Change }
func connect(r result) *connected { return r.Connect }
func churn(r result) *churned     { return r.Churn }
func rolling(r result) *rolled    { return r.Rolling }
func peak(r result) *memory       { return r.Peak }
func restart(r result) *restarted { return r.Restart }

func share(cpu, length time.Duration) float64 { return 100 * float64(cpu) / float64(length) }

func rows() []row {
	return slices.Concat(
		[]row{
			span("process start to every probed Service reachable", start, func(s *started) time.Duration { return s.Reachable }),
			span("— to everything written", start, func(s *started) time.Duration { return s.Synced }),
			span("— CPU", start, func(s *started) time.Duration { return s.CPU }),
			number("— peak memory, largest child included", start, func(s *started) float64 { return float64(s.Peak.total()) }, megabytes),
			number("idle, % of a core", idling, func(i *idled) float64 { return share(i.CPU, i.Length) }, decimal),
		},
		spreads("one endpoint change: API write to first new connection", change, func(c *changed) spread { return c.Seen }),
		[]row{
			span("— CPU for each", change, func(c *changed) time.Duration { return c.CPU }),
			number("connect() through a Service / direct, p50", connect, func(c *connected) float64 { return float64(c.Via.P50) / float64(c.Direct.P50) }, decimal),
			number("— p90", connect, func(c *connected) float64 { return float64(c.Via.P90) / float64(c.Direct.P90) }, decimal),
			span("— through a Service, p50", connect, func(c *connected) time.Duration { return c.Via.P50 }),
			number(many, connect, func(c *connected) float64 { return float64(c.Via.N) }, count),
		},
		churnRows(), rollingRows(),
		[]row{
			number("peak memory of all so far, largest child included", peak, func(m *memory) float64 { return float64(m.total()) }, megabytes),
			number("— of the process alone", peak, func(m *memory) float64 { return float64(m.Process) }, megabytes),
			span("restart, nothing changed: to nothing left to do", restart, func(r *restarted) time.Duration { return r.Synced }),
			span("— CPU", restart, func(r *restarted) time.Duration { return r.CPU }),
		},
	)
}

func churnRows() []row {
	all := []row{
		number("churn: writes a second", churn, func(c *churned) float64 { return float64(c.Writes) / c.Length.Seconds() }, decimal),
		number("— CPU, % of a core", churn, func(c *churned) float64 { return share(c.CPU, c.Length) }, decimal),
		span("— answer of the API server, p50", churn, func(c *churned) time.Duration { return c.Request.P50 }),
		span("— p99", churn, func(c *churned) time.Duration { return c.Request.P99 }),
		span("— event in the process to kernel, p50", churn, func(c *churned) time.Duration { return c.P50 }),
		span("— p99", churn, func(c *churned) time.Duration { return c.P99 }),
	}
	all = append(all, spreads("— API write to first new connection", churn, func(c *churned) spread { return c.Seen })...)
	return append(all, number("— not seen 30 s after the end", churn, func(c *churned) float64 { return float64(c.Unseen) }, count))
}

func rollingRows() []row {
	all := []row{
		number("rolling update: endpoints", rolling, func(r *rolled) float64 { return float64(r.Endpoints) }, count),
		span("— first write to last connection on an old endpoint", rolling, func(r *rolled) time.Duration { return r.Total }),
		span("— of which the writes took", rolling, func(r *rolled) time.Duration { return r.Writing }),
		span("— CPU", rolling, func(r *rolled) time.Duration { return r.CPU }),
		span("— longest sync, at least", rolling, func(r *rolled) time.Duration { return r.Sync }),
	}
	all = append(all, spreads("— compile and apply of a sync", rolling, func(r *rolled) spread { return r.Step })...)
	all = append(all, spreads("— new connections meanwhile", rolling, func(r *rolled) spread { return r.Connect })...)
	return append(all, number("— failed", rolling, func(r *rolled) float64 { return float64(r.Failed) }, count))
}

// printReport prints a table for every size, what grows with the size, and where
// the memory is.
func printReport(w io.Writer, results []result) error {
	var b strings.Builder
	for _, size := range sizesOf(results) {
		columns := of(results, func(r result) bool { return r.Services == size })
		fmt.Fprintf(&b, "### %d Services of %d endpoints\n\n", size, endpoints)
		columnsTable(&b, columns)
		for _, c := range columns {
			fmt.Fprintf(&b, "* %s: %s, measured %s.", titleOf(c.Proxy), c.Versions, c.When.Format(time.DateOnly))
			if c.NotReached != "" {
				fmt.Fprintf(&b, " **Not reached**: %s.", c.NotReached)
			}
			b.WriteString("\n")
		}
		b.WriteString("\n")
	}
	growth(&b, of(results, func(r result) bool { return r.Proxy == sluice }))
	heaps(&b, results)
	_, err := io.WriteString(w, b.String())
	return err
}

// columnsTable has a column for each result. Behind a number of kube-proxy is
// how often that of Sluice goes into it.
func columnsTable(b *strings.Builder, columns []result) {
	b.WriteString("| |")
	for _, c := range columns {
		fmt.Fprintf(b, " %s |", titleOf(c.Proxy))
	}
	b.WriteString("\n|---|" + strings.Repeat("---:|", len(columns)) + "\n")
	for _, r := range rows() {
		cells, measured := "", false
		for _, c := range columns {
			value := r.of(c)
			measured = measured || !math.IsNaN(value)
			cells += " " + cell(r, value) + against(r, value, columns[0], c) + " |"
		}
		if measured {
			fmt.Fprintf(b, "| %s |%s\n", r.title, cells)
		}
	}
	b.WriteString("\n")
}

func cell(r row, value float64) string {
	if math.IsNaN(value) {
		return ""
	}
	return r.print(value)
}

// against is how often a number of Sluice, which is first, goes into another's.
func against(r row, value float64, first, other result) string {
	base := r.of(first)
	if !isOurs(first.Proxy) || isOurs(other.Proxy) || !(base > 0 && value > 0) || r.title == many {
		return ""
	}
	return fmt.Sprintf(" (%s)", times(value/base))
}

// growth compares sizes of Sluice.
func growth(b *strings.Builder, list []result) {
	if len(list) < 2 {
		return
	}
	b.WriteString("### Sluice by number of Services\n\n| |")
	for _, r := range list {
		fmt.Fprintf(b, " %d |", r.Services)
	}
	b.WriteString(" last / first |\n|---|" + strings.Repeat("---:|", len(list)+1) + "\n")
	for _, r := range rows() {
		if first, last := r.of(list[0]), r.of(list[len(list)-1]); first > 0 && last > 0 && r.title != many {
			fmt.Fprintf(b, "| %s |", r.title)
			for _, result := range list {
				fmt.Fprintf(b, " %s |", cell(r, r.of(result)))
			}
			fmt.Fprintf(b, " %.2f |\n", last/first)
		}
	}
	b.WriteString("\n")
}

func heaps(b *strings.Builder, results []result) {
	for _, r := range results {
		if r.Heap != "" {
			fmt.Fprintf(b, "### Where the memory of %s is with %d Services\n\n```\n%s\n```\n\n", titleOf(r.Proxy), r.Services, r.Heap)
		}
	}
}

func sizesOf(results []result) []int {
	var out []int
	for _, r := range results {
		out = append(out, r.Services)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// of are the results wanted, in the order of kinds and sizes.
func of(results []result, wanted func(result) bool) []result {
	names := proxyNames()
	var out []result
	for _, r := range results {
		if wanted(r) {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b result) int {
		return cmp.Or(cmp.Compare(slices.Index(names, a.Proxy), slices.Index(names, b.Proxy)), cmp.Compare(a.Services, b.Services))
	})
	return out
}

func isOurs(name string) bool { return kind{name: name}.ours() }

func titleOf(name string) string {
	for _, k := range kinds() {
		if k.name == name {
			return k.title
		}
	}
	return name
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

// times is a ratio with as many digits as matter.
func times(ratio float64) string {
	if ratio >= 10 {
		return fmt.Sprintf("%.0fx", ratio)
	}
	return fmt.Sprintf("%.1fx", ratio)
}
