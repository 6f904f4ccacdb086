//go:build linux

// Command ejection measures where new connections go after a backend stopped answering, with the annotation
// sluice-proxy.github.io/ejection and without, and prints a Markdown table. docs/benchmarks.md has it.
//
//	go run ./test/bench/ejection                    # six minutes
//	go run ./test/bench/ejection -cases cut -modes nftables,iptables
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// kase is what happens to backends during a measurement.
type kase struct {
	name    string
	on      string // the annotation; empty: none
	seconds int
	links   []int // the backends whose link changes

	// set returns the command of nft for these backends in a second; empty: nothing changes.
	set func(second int) string
}

const (
	cut  = "add table inet cut; add chain inet cut in { type filter hook input priority 0; }; add rule inet cut in drop"
	mend = "delete table inet cut"
	// A packet in fifty is lost in each direction.
	lossy = "add table inet cut; add chain inet cut in { type filter hook input priority 0; }; " +
		"add chain inet cut out { type filter hook output priority 0; }; " +
		"add rule inet cut in numgen random mod 50 == 0 drop; add rule inet cut out numgen random mod 50 == 0 drop"
)

func cases(loss int) []kase {
	at := func(commands map[int]string) func(int) string {
		return func(second int) string { return commands[second] }
	}
	return []kase{
		{"cut without ejection", "", 20, []int{2}, at(map[int]string{5: cut})},
		{"cut", "on", 70, []int{2}, at(map[int]string{5: cut, 45: mend})},
		{"all dead", "on", 40, []int{0, 1, 2}, at(map[int]string{5: cut})},
		{"flapping 5 s", "on", 70, []int{2}, func(second int) string {
			switch {
			case second%10 == 5:
				return cut
			case second > 5 && second%10 == 0:
				return mend
			}
			return ""
		}},
		{"loss of 2 %", "on", loss, []int{0, 1, 2}, at(map[int]string{1: lossy})},
	}
}

// options are the flags.
type options struct {
	cases, modes, sluice string
	loss                 int
	rate                 int
}

func main() {
	o := options{}
	flag.StringVar(&o.cases, "cases", "", "what to measure, with commas between (default: everything)")
	flag.StringVar(&o.modes, "modes", "nftables", "modes, with commas between")
	flag.StringVar(&o.sluice, "sluice", "", "the program sluice (default: one that is built for this run)")
	flag.IntVar(&o.loss, "loss", 120, "seconds with packet loss")
	flag.IntVar(&o.rate, "rate", 500, "connections a second")
	flag.Parse()
	err := lab.Enter()
	if err == nil {
		err = run(o, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "ejection:", err)
		os.Exit(1)
	}
}

// run measures all cases, each in a lab of its own.
func run(o options, w io.Writer) error {
	fmt.Fprintf(w, "| mode | case | connections/s | failed in second 1, 2, 3, 4 | seconds 4 to 40 | "+
		"most in one of these | ejections | CPU |\n|---|---|---:|---:|---:|---:|---:|---:|\n")
	for mode := range strings.SplitSeq(o.modes, ",") {
		for _, k := range cases(o.loss) {
			if o.cases != "" && !slices.Contains(strings.Split(o.cases, ","), k.name) {
				continue
			}
			var r *result
			var failed error
			err := lab.Run(func(t lab.T) { r, failed = measure(t, mode, k, o) })
			if err := cmp.Or(err, failed); err != nil {
				return fmt.Errorf("%s, %s: %w", mode, k.name, errors.Join(err, failed))
			}
			fmt.Fprintf(w, "| %s | %s | %s |\n", mode, k.name, r)
		}
	}
	return nil
}

// result are the connections of each second, counted when they began.
type result struct {
	seconds   []counts
	ejections int
	cpu       time.Duration
}

type counts struct{ all, failed int }

func (c counts) percent() float64 { return 100 * float64(c.failed) / float64(max(1, c.all)) }

// String returns the cells of a row.
func (r *result) String() string {
	const before = 5 // seconds until something changes
	var first []string
	for _, c := range r.seconds[before:][:4] {
		first = append(first, fmt.Sprintf("%.1f", c.percent()))
	}
	var later, whole counts
	most := 0.0
	for i, c := range r.seconds {
		whole.all += c.all
		if i >= before+3 && i < before+40 {
			later.all, later.failed, most = later.all+c.all, later.failed+c.failed, max(most, c.percent())
		}
	}
	return fmt.Sprintf("%d | %s %% | %.2f %% | %.1f %% | %d | %.1f %%", whole.all/len(r.seconds),
		strings.Join(first, ", "), later.percent(), most, r.ejections,
		100*r.cpu.Seconds()/float64(len(r.seconds)))
}
