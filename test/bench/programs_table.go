//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/test/harness"
)

// reportPrograms compares each size, in turns and in separate processes, and prints a table.
func reportPrograms(o options, w io.Writer) error {
	results := make([][]comparison, len(o.sizes))
	for turn := range o.runs {
		for i, n := range o.sizes {
			fmt.Fprintf(os.Stderr, "run %d of %d: %d Services\n", turn+1, o.runs, n)
			out, err := child(o, n)
			if err != nil {
				return fmt.Errorf("compare %d Services: %w", n, err)
			}
			var c comparison
			if err := json.Unmarshal(out, &c); err != nil {
				return fmt.Errorf("read the result: %w", err)
			}
			results[i] = append(results[i], c)
		}
	}
	for i, n := range o.sizes {
		if err := printPrograms(w, n, results[i]); err != nil {
			return err
		}
	}
	return printGrowth(w, o.sizes, results)
}

// programRow is a line of the table: a time of a contender.
type programRow struct {
	title string
	of    func([]comparison, side) time.Duration
	print func(float64) string
}

// side selects one of the contenders.
type side func(comparison) contender

func bySluice(c comparison) contender   { return c.Sluice }
func byPrograms(c comparison) contender { return c.Programs }

func programRows() []programRow {
	total := func(all []comparison, of side) time.Duration {
		return median(all, func(c comparison) time.Duration { return of(c).total() })
	}
	list := []programRow{{"cold load, ms", total, millis}}
	for _, m := range []struct {
		title string
		mechanism
	}{
		{"— virtual servers and destinations (`ipvsadm --restore`)", virtualServers},
		{"— their addresses (`ip -batch -`)", addresses},
		{"— ipsets (`ipset restore`)", ipsets},
		{"— rules (`iptables-restore`)", rules},
		{"— to read the empty kernel, compile and plan", thinking},
	} {
		list = append(list, programRow{m.title, func(all []comparison, of side) time.Duration {
			return median(all, func(c comparison) time.Duration { return of(c).Cold[m.mechanism] })
		}, millis})
	}
	for _, q := range []struct {
		title string
		of    float64
	}{{"endpoint replaced, p50, µs", 0.5}, {"— p90", 0.9}, {"— p99", 0.99}, {"— longest", 1}} {
		list = append(list, programRow{q.title, func(all []comparison, of side) time.Duration {
			return harness.Quantile(changesOf(all, of), q.of)
		}, micros})
	}
	return list
}

func changesOf(all []comparison, of side) (list []time.Duration) {
	for _, c := range all {
		list = append(list, of(c).Changes...)
	}
	return list
}

// printPrograms prints the durations of one size.
func printPrograms(w io.Writer, size int, all []comparison) error {
	var b strings.Builder
	fmt.Fprintf(&b, "| %d Services of %d endpoints | Sluice | the programs | Sluice / programs |\n|---|---:|---:|---:|\n",
		size, endpoints)
	for _, r := range programRows() {
		sluice, programs := float64(r.of(all, bySluice)), float64(r.of(all, byPrograms))
		fmt.Fprintf(&b, "| %s | %s |", r.title, r.print(sluice))
		switch {
		case all[0].Programs.Cold == nil:
			b.WriteString(" not measured: no ipvsadm | |\n")
		case programs == 0:
			b.WriteString(" | |\n")
		default:
			fmt.Fprintf(&b, " %s | %.2f |\n", r.print(programs), sluice/programs)
		}
	}
	var nothing []time.Duration
	for _, c := range all {
		nothing = append(nothing, c.Nothing...)
	}
	if len(nothing) > 0 {
		fmt.Fprintf(&b, "| `ipvsadm --restore` without input, p50, µs | | %s | |\n",
			micros(float64(harness.Quantile(nothing, 0.5))))
	}
	fmt.Fprintf(&b, "\n%d changes in %d runs; loads are medians.\n\n", len(changesOf(all, bySluice)), len(all))
	_, err := io.WriteString(w, b.String())
	return err
}

// printGrowth prints the cost of a change at each size.
func printGrowth(w io.Writer, sizes []int, results [][]comparison) error {
	var b strings.Builder
	b.WriteString("| endpoint replaced, µs |")
	for _, n := range sizes {
		fmt.Fprintf(&b, " %d |", n)
	}
	b.WriteString(" last / first |\n|---|" + strings.Repeat("---:|", len(sizes)+1) + "\n")
	for _, who := range []struct {
		title string
		side
	}{{"Sluice", bySluice}, {"`ipvsadm --restore`", byPrograms}} {
		for _, q := range []float64{0.5, 0.9} {
			fmt.Fprintf(&b, "| %s, p%.0f |", who.title, q*100)
			var values []float64
			for _, all := range results {
				values = append(values, float64(harness.Quantile(changesOf(all, who.side), q)))
				fmt.Fprintf(&b, " %s |", micros(values[len(values)-1]))
			}
			fmt.Fprintf(&b, " %.2f |\n", values[len(values)-1]/values[0])
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
