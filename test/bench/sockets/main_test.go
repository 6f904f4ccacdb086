//go:build linux

package main

import (
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/bpf"
	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
	"github.com/sluice-proxy/sluice/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m, withoutSignals) }

// A short run measures every way: programs decide exactly the connections of mode ebpf, and no cell of a table is empty.
func TestRun(t *testing.T) {
	kerneltest.NeedPrograms(t)
	o, err := parse(strings.Fields("-sizes 3,10 -rounds 2 -calls 5 -stream 100000 -changes 5"), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := run(o, &out); err != nil {
		t.Fatal(err)
	}
	t.Log(out.String())
	var titles []string
	for text := range strings.Lines(out.String()) {
		cells := strings.Split(strings.TrimSuffix(text, " |\n"), " | ")
		if !strings.HasPrefix(text, "| ") || strings.HasPrefix(text, "| ---") || strings.HasPrefix(text, "| — ") {
			continue
		}
		titles = append(titles, strings.TrimPrefix(cells[0], "| "))
		for i, cell := range cells[1:] {
			if first := i == 0 && cells[0] == "| bytes per further Service"; !first && (cell == "" || strings.HasPrefix(cell, "0.00")) {
				t.Errorf("cell %d is %q: %s", i, cell, text)
			}
		}
	}
	traffic := []string{
		"connect(), p50, µs", "socket(), connect(), close(), p50, µs", "connect(), first request and response, p50, µs", "TCP request and response, p50, µs", "TCP stream, MB/s",
		"UDP request and response, connected, p50, µs", "UDP request and response, not connected, p50, µs",
	}
	want := slices.Concat([]string{"3 Services"}, traffic, []string{"10 Services"}, traffic, []string{
		"Services", "first load, ms", "an endpoint replaced, p50, µs", "an endpoint replaced, p90, µs", "an endpoint replaced, p99, µs",
		"maps of Services, KB", "maps that programs and other parts write, KB", "bytes per further Service",
	})
	if !slices.Equal(titles, want) {
		t.Errorf("got the lines\n%s\nwant\n%s", strings.Join(titles, "\n"), strings.Join(want, "\n"))
	}
}

func TestParse(t *testing.T) {
	for args, problem := range map[string]string{
		"":                 "",
		"-sizes 3,100":     "",
		"-sizes 2":         `got "2"`,
		"-sizes few":       `got "few"`,
		"-rounds 0":        "at least one round",
		"-calls 4001":      "1 to 4000 calls",
		"-stream 0":        "at least one byte",
		"-changes 0":       "one change",
		"-rounds 2 please": "want flags only",
	} {
		_, err := parse(strings.Fields(args), io.Discard)
		if (problem == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), problem) {
			t.Errorf("%q: %v, want %q", args, err, problem)
		}
	}
}

// The tables have quantiles of all rounds, the ratio of each round, and what a further Service takes.
func TestReport(t *testing.T) {
	of := func(medians ...time.Duration) (list []batch) {
		for _, d := range medians {
			list = append(list, batch{took: []time.Duration{d, d, d + time.Microsecond}, rate: 1e12 / float64(d)})
		}
		return list
	}
	r := result{services: 10, load: time.Second, changes: []time.Duration{time.Microsecond, 2 * time.Microsecond}, batches: map[string]map[string][]batch{}}
	for _, m := range measurements() {
		r.batches[m.title] = map[string][]batch{direct: of(1000, 2000, 4000), attached: of(1000, 2000, 4000), sockets: of(1100, 2000, 5000), packets: of(2000, 2000, 2000)}
	}
	r.maps = []bpf.Usage{{Map: "slots", Bytes: 1000}, {Map: "frontends", Bytes: 48}, {Map: "counts", Bytes: 2048}}
	more := r
	more.services, more.maps = 12, []bpf.Usage{{Map: "slots", Bytes: 3048}, {Map: "counts", Bytes: 2048}}
	text := report(options{rounds: 3, calls: 3, stream: 1e6}, []result{r, more})
	for _, want := range []string{
		"3 rounds of 3 calls, or of 1.0 MB, by each way. Ratios are those of a round: the median, and the interval that has the true one with a probability of 95%.\n\n| 10 Services | direct | direct, programs attached | ebpf | nftables |\n",
		"| connect(), p50, µs | 2.00 | 2.00 | 2.10 | 2.00 |\n| — p10, µs | 1.00 | 1.00 | 1.10 | 2.00 |\n" +
			"| — p90, µs | 5.00 | 5.00 | 6.00 | 3.00 |\n| — p99, µs | 5.00 | 5.00 | 6.00 | 3.00 |\n" +
			"| — ratio to direct | 1.000 (1.000–1.000) | 1.000 (1.000–1.000) | 1.100 (1.000–1.250) | 1.000 (0.500–2.000) |\n" +
			"| — ratio to direct, programs attached | 1.000 (1.000–1.000) | 1.000 (1.000–1.000) | 1.100 (1.000–1.250) | 1.000 (0.500–2.000) |\n",
		"| TCP stream, MB/s | 500 (250–1000) | 500 (250–1000) | 500 (200–909) | 500 (500–500) |\n",
		"| Services | 10 | 12 |\n| --- | ---: | ---: |\n| first load, ms | 1000.0 | 1000.0 |\n| an endpoint replaced, p50, µs | 2.00 | 2.00 |\n",
		"| maps of Services, KB | 1.0 | 3.0 |\n| maps that programs and other parts write, KB | 2.0 | 2.0 |\n| bytes per further Service |  | 1000 |\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no\n%s", want)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}
