//go:build linux

// Command slots measures how long a connection through mode nftables takes to begin, with each way to choose the
// backend, and prints a Markdown table: docs/benchmarks.md has it. A round is one connection each way, so that all
// ways have the same disturbances. Then it prints which shares backends with weights have: docs/balancing.md has them.
//
//	go run ./test/bench/slots
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

const (
	backends = 10
	shares   = 5_000 // connections by which shares are measured
	limit    = 30 * time.Second
)

// way is a Service with a way to choose the backend.
type way struct {
	name        string
	at          string // its clusterIP
	annotations harness.Object
}

func ways() []way {
	const prefix = "sluice-proxy.github.io/"
	return []way{
		{"random", "172.30.0.81", harness.Object{}},
		{"weights", "172.30.0.82", harness.Object{prefix + "weights": backend(0) + "=3," + backend(1) + "=2"}},
		{"maglev", "172.30.0.83", harness.Object{prefix + "scheduler": "maglev"}},
		{"lc", "172.30.0.84", harness.Object{prefix + "scheduler": "lc"}},
	}
}

func main() {
	rounds := flag.Int("rounds", 20_000, "connections each way")
	flag.Parse()
	err := lab.Enter()
	if err == nil {
		err = run(*rounds, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "slots:", err)
		os.Exit(1)
	}
}

func run(rounds int, w io.Writer) error {
	m := measured{took: map[string][]time.Duration{}}
	var failed error
	if err := lab.Run(func(t lab.T) { failed = m.measure(t, rounds) }); err != nil || failed != nil {
		return errors.Join(err, failed)
	}
	fmt.Fprintln(w, "| | p50, µs | p90, µs | p99, µs | p50, ratio to random |")
	fmt.Fprintln(w, "|---|---:|---:|---:|---:|")
	var random float64
	for _, way := range ways() {
		list := m.took[way.name]
		slices.Sort(list)
		at := func(q float64) float64 { return float64(list[int(q*float64(len(list)-1))].Nanoseconds()) / 1000 }
		if way.name == "random" {
			random = at(0.5)
		}
		fmt.Fprintf(w, "| %s | %.1f | %.1f | %.1f | %.3f |\n", way.name, at(0.5), at(0.9), at(0.99), at(0.5)/random)
	}
	fmt.Fprintln(w)
	total := 0
	for i := range backends {
		total += weight(i)
	}
	for i, n := range m.answered {
		share := 100 * float64(n) / shares
		fmt.Fprintf(w, "%s  weight %d  %4.1f %% of %4.1f %%  %s\n", backend(i), weight(i), share,
			100*float64(weight(i))/float64(total), strings.Repeat("█", int(share+0.5)))
	}
	return nil
}

func backend(i int) string { return fmt.Sprintf("10.180.0.%d", 20+i) }

func weight(i int) int { return max(1, 3-i) }

type measured struct {
	took     map[string][]time.Duration // by the name of a way
	answered [backends]int              // connections by weights
}

// measure runs Sluice, and connections through it.
func (m *measured) measure(t lab.T, rounds int) error {
	l := lab.New(t, lab.Options{})
	client := l.Pod(l.NodeA, "10.180.0.9")
	var addresses []string
	for i := range backends {
		addresses = append(addresses, backend(i))
		l.Pod(l.NodeA, addresses[i]).Serve(lab.TCP, 80)
	}
	dir, err := os.MkdirTemp("/run", "slots-")
	if err != nil {
		return err
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	manifest := filepath.Join(dir, "services.json")
	if err := os.WriteFile(manifest, manifests(addresses), 0o600); err != nil {
		return err
	}
	program, err := harness.ProgramIn(dir)
	if err != nil {
		return err
	}
	p, err := harness.Start(l.NodeA, exec.Command(program, "--manifests="+manifest, "--hostname-override=node-a",
		"--cluster-cidr=10.180.0.0/16", "--proxy-mode=nftables"))
	if err != nil {
		return err
	}
	defer func() { _, _ = p.Stop(syscall.SIGTERM, limit) }() // the lab ends as well
	err = client.Do(func() error {
		for _, way := range ways() {
			if err := p.Until(limit, way.name, func() error { _, err := connect(way.at); return err }); err != nil {
				return err
			}
		}
		for i := range rounds {
			for k := range ways() {
				way := ways()[(i+k)%len(ways())]
				d, err := connect(way.at)
				if err != nil {
					return err
				}
				m.took[way.name] = append(m.took[way.name], d)
			}
		}
		return nil
	})
	for _, r := range client.Repeat(shares, lab.Probe{Protocol: lab.TCP, To: netip.MustParseAddrPort("172.30.0.82:80")}) {
		if r.Outcome != lab.Answered {
			return errors.Join(err, fmt.Errorf("a connection by weights: %s", r))
		}
		m.answered[r.Backend.Addr().As4()[3]-20]++
	}
	return err
}

// connect opens and closes a connection, and returns how long opening took.
func connect(address string) (time.Duration, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = syscall.Close(fd) }() // its outcome does not matter
	if err := syscall.SetsockoptLinger(fd, syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1}); err != nil {
		return 0, err
	}
	to := &syscall.SockaddrInet4{Port: 80, Addr: netip.MustParseAddr(address).As4()}
	begin := time.Now()
	err = syscall.Connect(fd, to)
	return time.Since(begin), err
}

// manifests returns a Service for each way, all with the same backends.
func manifests(addresses []string) []byte {
	ports := []harness.Object{{"port": 80}}
	var all []harness.Object
	for _, way := range ways() {
		svc := harness.Service(way.name, harness.Object{"clusterIP": way.at, "ports": ports})
		svc["metadata"].(harness.Object)["annotations"] = way.annotations
		all = append(all, svc, harness.EndpointSlice(way.name, "IPv4", ports, addresses...))
	}
	return harness.Manifest(all)
}
