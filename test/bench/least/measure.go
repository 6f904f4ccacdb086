//go:build linux

package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

// The model: a client opens connections at random times, and keeps each as long as the backend that answers takes.
// Times are exponentially distributed.
const (
	backends = 8
	slowness = 5
	hold     = time.Second // on average, at a backend that is not slow
	rate     = 80.         // connections a second
	limit    = 30 * time.Second
)

func backendAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 180, 0, byte(20 + i)}) }

// measure runs Sluice in a mode, and connections through it.
func measure(t lab.T, w way, o options) (counts, error) {
	l := lab.New(t, lab.Options{Cgroups: w.mode == "ebpf"})
	client := l.Pod(l.NodeA, "10.180.0.9")
	for i := range backends {
		l.Pod(l.NodeA, backendAddr(i).String()).Serve(lab.TCP, 80)
	}
	dir, err := os.MkdirTemp("/run", "least-")
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	manifest := filepath.Join(dir, "web.json")
	if err := os.WriteFile(manifest, w.manifest(), 0o600); err != nil {
		return nil, err
	}
	program := o.sluice
	if program == "" {
		if program, err = harness.ProgramIn(dir); err != nil {
			return nil, err
		}
	}
	args := []string{
		"--manifests=" + manifest, "--hostname-override=node-a", "--cluster-cidr=10.180.0.0/16", "--proxy-mode=" + w.mode,
	}
	known := func() error { return nil }
	if w.mode == "ebpf" {
		bpf := filepath.Join(lab.BPFFS(t), "sluice")
		args = append(args, "--bpf-dir="+bpf, "--cgroup-root="+l.NodeA.Cgroup())
		known = func() error { return harness.Known(bpf, client) }
	}
	p, err := harness.Start(l.NodeA, exec.Command(program, args...))
	if err != nil {
		return nil, err
	}
	defer func() { _, _ = p.Stop(syscall.SIGTERM, limit) }()         // the lab ends as well
	b := &bench{client: client, random: rand.New(rand.NewPCG(1, 2))} //nolint:gosec // the same numbers for each way
	if err := errors.Join(p.Until(limit, "the client", known), p.Until(limit, "the Service", b.open)); err != nil {
		return nil, err
	}
	return b.run(time.Duration(o.seconds) * time.Second)
}

// manifest returns a Service with all backends.
func (w way) manifest() []byte {
	ports := []harness.Object{{"port": 80}}
	svc := harness.Service("web", harness.Object{"clusterIP": "172.30.0.80", "ports": ports})
	if w.scheduler != "" {
		svc["metadata"].(harness.Object)["annotations"] = harness.Object{"sluice-proxy.github.io/scheduler": w.scheduler}
	}
	var addresses []string
	for i := range backends {
		addresses = append(addresses, backendAddr(i).String())
	}
	return harness.Manifest([]harness.Object{svc, harness.EndpointSlice("web", "IPv4", ports, addresses...)})
}

// bench has the open connections.
type bench struct {
	client *lab.Host
	random *rand.Rand
	flows  []flow
	live   [backends]int
}

type flow struct {
	*lab.Flow
	backend int
	ends    time.Time
}

// open opens a connection.
func (b *bench) open() error {
	at := netip.MustParseAddrPort("172.30.0.80:80")
	f, r := b.client.Open(lab.Probe{Protocol: lab.TCP, To: at})
	if r.Outcome != lab.Answered {
		return fmt.Errorf("a connection: %s", r)
	}
	i := int(r.Backend.Addr().As4()[3]) - 20
	takes := time.Duration(b.random.ExpFloat64() * float64(hold))
	if i == backends-1 {
		takes *= slowness
	}
	b.live[i]++
	b.flows = append(b.flows, flow{f, i, time.Now().Add(takes)})
	return nil
}

// close closes the connections that have ended.
func (b *bench) close() {
	now := time.Now()
	b.flows = slices.DeleteFunc(b.flows, func(f flow) bool {
		if f.ends.After(now) {
			return false
		}
		f.Close()
		b.live[f.backend]--
		return true
	})
}

// run opens and closes connections for a while, and counts them after as long.
func (b *bench) run(d time.Duration) (c counts, err error) {
	begin := time.Now()
	next := begin
	for sample := begin.Add(d); time.Since(begin) < 2*d; time.Sleep(time.Millisecond) {
		for ; next.Before(time.Now()); next = next.Add(time.Duration(b.random.ExpFloat64() / rate * float64(time.Second))) {
			if err := b.open(); err != nil {
				return c, err
			}
		}
		b.close()
		if time.Now().After(sample) {
			sample = sample.Add(100 * time.Millisecond)
			c = append(c, b.live)
		}
	}
	for _, f := range b.flows {
		f.Close()
	}
	return c, nil
}

// counts are how many connections the backends had, at several times.
type counts [][backends]int

// String returns the columns of the table.
func (c counts) String() string {
	var all []int
	slow, others := 0, 0
	for _, live := range c {
		all = append(all, live[:]...)
		slow += live[backends-1]
		for _, n := range live[:backends-1] {
			others += n
		}
	}
	slices.Sort(all)
	at := func(q float64) int { return all[int(q*float64(len(all)-1))] }
	n := float64(len(c))
	return fmt.Sprintf("%d | %d | %d | %.1f | %.1f",
		at(0.5), at(0.99), at(1), float64(slow)/n, float64(others)/n/(backends-1))
}
