//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/harness"
)

// TestMain also runs the processes that the benchmark starts: backend and clients.
func TestMain(m *testing.M) {
	switch err := runRole(os.Args[1:]); {
	case errors.Is(err, errNoRole):
		harness.Main(m)
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// A short run measures direct connections and the planes of Sluice, and nothing fails.
func TestRun(t *testing.T) {
	t.Setenv("GORACE", "atexit_sleep_ms=0") // each process of clients would wait for a second at its end
	o, err := parse(strings.Fields("-rounds 1 -time 100ms -connections 1,20 -proxies direct,nftables,userspace,userspace-rules"), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := run(o, &out); err != nil {
		t.Fatal(err)
	}
	t.Log(out.String())
	for line := range strings.Lines(out.String()) {
		if strings.Contains(line, "/s") && strings.Contains(line, " 0.00 (") {
			t.Errorf("nothing was done: %s", line)
		}
	}
	for _, want := range []string{"| | direct | nftables | userspace | userspace-rules |\n", "| kept connections: 20, requests/s |", "| streams: 4, MB/s |", "| clients: 1, new connections/s |", "| clients: 20, new connections/s |"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("there is no %q", want)
		}
	}
	if strings.Contains(out.String(), "failed") {
		t.Error("some requests failed")
	}
}

// A path that was given is not replaced by that of the system.
func TestFindHAProxy(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if path, err := findHAProxy("/no/such/haproxy"); err == nil {
		t.Errorf("found %q", path)
	}
	if path, err := findHAProxy(""); err == nil && path != "/usr/sbin/haproxy" {
		t.Errorf("found %q", path)
	}
}

func TestParse(t *testing.T) {
	for args, problem := range map[string]string{
		"":                          "",
		"-connections 1,2":          "",
		"-connections 0":            `got "0"`,
		"-connections 4001":         "from 1 to 4000",
		"-rounds 0":                 "at least one round",
		"-time 1us":                 "at least one round",
		"-proxies direct,nginx":     `got "nginx"`,
		"-proxies haproxy -time 2s": "",
		"please":                    "want flags only",
	} {
		_, err := parse(strings.Fields(args), io.Discard)
		if (problem == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), problem) {
			t.Errorf("%q: %v, want %q", args, err, problem)
		}
	}
	o, err := parse(nil, io.Discard)
	if err != nil || !slices.Equal(o.connections, []int{1, 64, 1000}) || !slices.Equal(o.proxies, proxyNames()) {
		t.Errorf("got %+v, %v", o, err)
	}
}

// The table has medians with minima and maxima, and the ratio of each round.
func TestTable(t *testing.T) {
	w := work{requests, 1}
	of := func(done ...int64) map[work][]sample {
		var list []sample
		for _, n := range done {
			list = append(list, sample{
				outcome: outcome{Done: n, Took: time.Second, P50: time.Millisecond, P99: 2 * time.Millisecond},
				CPU:     time.Second, Memory: 3 << 20,
			})
		}
		return map[work][]sample{w: list}
	}
	all := results{direct: of(1000, 2000), haproxy: of(100, 200), userspace: of(50, 300), withRules: of(80, 80)}
	contenders := []*contender{{name: direct}, {name: haproxy}, {name: userspace}, {name: withRules}}
	const want = `| | direct | haproxy | userspace | userspace-rules | userspace / haproxy | userspace-rules / haproxy |
|---|---:|---:|---:|---:|---:|---:|
| kept connections: 1, requests/s | 1500 (1000–2000) | 150 (100–200) | 175 (50.0–300) | 80.0 (80.0–80.0) | 1.000 (0.500–1.500) | 0.600 (0.400–0.800) |
| — p50, µs | 1000 (1000–1000) | 1000 (1000–1000) | 1000 (1000–1000) | 1000 (1000–1000) | 1.000 (1.000–1.000) | 1.000 (1.000–1.000) |
| — p99, µs | 2000 (2000–2000) | 2000 (2000–2000) | 2000 (2000–2000) | 2000 (2000–2000) | 1.000 (1.000–1.000) | 1.000 (1.000–1.000) |
| — CPU of the proxy for a request, µs |  | 7500 (5000–10000) | 11667 (3333–20000) | 12500 (12500–12500) | 1.333 (0.667–2.000) | 1.875 (1.250–2.500) |
| — resident memory of the proxy, MB |  | 3.00 (3.00–3.00) | 3.00 (3.00–3.00) | 3.00 (3.00–3.00) | 1.000 (1.000–1.000) | 1.000 (1.000–1.000) |
`
	if got := table(contenders, tableRows(options{connections: []int{1}})[:6], all); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// The interval of a ratio leaves out as many values at each end as the tables of the sign test say.
