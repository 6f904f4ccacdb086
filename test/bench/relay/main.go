//go:build linux

// Command relay measures the userspace plane of Sluice beside HAProxy in TCP mode, with the plane nftables and with
// direct connections for scale, and prints a Markdown table. docs/benchmarks.md explains each number.
//
//	go run ./test/bench/relay                     # about 25 minutes
//	go run ./test/bench/relay -rounds 3 -time 1s  # about four minutes
//	go run ./test/bench/relay -proxies haproxy,userspace
//	go run ./test/bench/relay -ports 32768-60999 -time 120s -rounds 1 -connections 1 -proxies haproxy,userspace
//	go run ./test/bench/relay -profile DIR        # and CPU profiles of the userspace plane
//
// Each proxy has a network namespace of its own, in which clients, proxy and backend are processes
// that use loopback. All measure in turns, round by round, so other load on the machine affects all
// alike. HAProxy is not measured if it is not installed; Debian's package is haproxy.
//
// It needs root, or unprivileged user namespaces, and leaves nothing behind if it is killed.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// options are the flags.
type options struct {
	rounds      int
	time        time.Duration // of each measurement
	connections []int         // numbers of kept connections, and of clients that open new ones
	proxies     []string      // of proxyNames()
	haproxy     string        // path; if empty, the program of the system
	sluice      string        // path; if empty, it is built
	ports       string        // range of local ports, as in ip_local_port_range; if empty, one that does not limit
	profile     string        // folder for CPU profiles of the userspace plane
}

func main() {
	err := runRole(os.Args[1:])
	if errors.Is(err, errNoRole) {
		err = bench(os.Args[1:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "relay:", err)
		os.Exit(1)
	}
}

func bench(args []string) error {
	o, err := parse(args, os.Stderr)
	if err != nil {
		return err
	}
	if err := lab.Enter(); err != nil {
		return err
	}
	return run(o, os.Stdout)
}

// parse parses the flags. If it fails, it prints their description to help.
func parse(args []string, help io.Writer) (options, error) {
	o := options{connections: []int{1, 64, 1000}, proxies: proxyNames()}
	fs := flag.NewFlagSet("relay", flag.ContinueOnError)
	fs.SetOutput(help)
	fs.IntVar(&o.rounds, "rounds", 9, "rounds; the table has their medians, minima and maxima")
	fs.DurationVar(&o.time, "time", 3*time.Second, "duration of each measurement")
	fs.Func("connections",
		"numbers of kept connections, and of clients that open new ones, with commas between (default 1,64,1000)",
		func(text string) error {
			o.connections = nil
			for word := range strings.SplitSeq(text, ",") {
				n, err := strconv.Atoi(word)
				if err != nil || n < 1 || n > maxConnections {
					return fmt.Errorf("want numbers from 1 to %d, got %q", maxConnections, word)
				}
				o.connections = append(o.connections, n)
			}
			return nil
		})
	fs.Func("proxies", "of "+strings.Join(proxyNames(), ",")+" (default all)", func(text string) error {
		o.proxies = strings.Split(text, ",")
		return nil
	})
	fs.StringVar(&o.haproxy, "haproxy", "", "path of HAProxy (default that of the system)")
	fs.StringVar(&o.sluice, "sluice", "", "path of Sluice (default: build it)")
	fs.Func("ports",
		"range of local ports, such as 32768-60999; measures new connections only, without the reuse by tcp_tw_reuse",
		func(text string) error {
			var first, last uint16
			if _, err := fmt.Sscanf(text, "%d-%d", &first, &last); err != nil {
				return fmt.Errorf("want FROM-TO, got %q: %w", text, err)
			}
			o.ports = fmt.Sprintf("%d %d", first, last)
			return nil
		})
	fs.StringVar(&o.profile, "profile", "",
		"folder to write CPU profiles of the userspace plane to, one for each measurement")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	return o, o.check(fs.Args())
}

func (o options) check(rest []string) error {
	if len(rest) > 0 {
		return fmt.Errorf("want flags only, got %q", rest)
	}
	if o.rounds < 1 || o.time < time.Millisecond {
		return fmt.Errorf("want at least one round and measurements of 1 ms, got %d and %v", o.rounds, o.time)
	}
	for _, name := range o.proxies {
		if !slices.Contains(proxyNames(), name) {
			return fmt.Errorf("want proxies of %s, got %q", strings.Join(proxyNames(), ","), name)
		}
	}
	return nil
}

// run starts all proxies, measures them and prints the report.
func run(o options, w io.Writer) error {
	var failed error
	err := lab.Run(func(t lab.T) {
		contenders, err := start(t, o)
		if err != nil {
			t.Fatalf("start: %v", err)
		}
		failed = measure(o, contenders, w)
	})
	if err != nil {
		return err
	}
	return failed
}

func measure(o options, contenders []*contender, w io.Writer) error {
	before, err := readLoad()
	if err != nil {
		return err
	}
	results, err := measureAll(o, contenders)
	if err != nil {
		return err
	}
	after, err := readLoad()
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%d rounds of %v for each measurement; load average %s before, %s after.\n",
		o.rounds, o.time, before, after)
	for _, c := range contenders {
		if c.version != "" {
			fmt.Fprintf(w, "%s: %s\n", c.name, c.version)
		}
	}
	fmt.Fprintf(w, "\n%s", table(contenders, tableRows(o), results))
	if o.profile == "" {
		return nil
	}
	return profile(o, contenders)
}

// readLoad returns the load averages of the machine over 1, 5 and 15 minutes.
func readLoad() (string, error) {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "", err
	}
	return strings.Join(strings.Fields(string(text))[:3], " "), nil
}
