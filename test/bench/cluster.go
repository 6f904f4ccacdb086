//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/test/apiserver"
	"github.com/sluice-proxy/sluice/test/lab"
)

// whole is what was measured of the program as a whole, with an API server.
type whole struct {
	Start    time.Duration // process start to every probed Service reachable
	P50, P99 time.Duration // API write to the first new connection on the new backend
	CPU      time.Duration // per change
	PeakRSS  uint64
	Again    time.Duration // a second start: process start to nothing left to do
	Direct   time.Duration // connect() to a pod, p50
	Via      time.Duration // connect() through a Service, p50
}

// measureCluster measures the program on a node of a lab, with an API server
// that holds many Services.
func measureCluster(o options, w io.Writer) error {
	if err := apiserver.Assets(); err != nil {
		return err
	}
	if err := lab.Enter(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("/run", "sluice-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	program := filepath.Join(dir, "sluice")
	build := exec.Command("go", "build", "-o", program, "github.com/sluice-proxy/sluice/cmd/sluice")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("build sluice: %w", err)
	}
	return attempt(func(t *reporter) error {
		b := newClusterBench(t, o, program)
		if err := b.populate(); err != nil {
			return fmt.Errorf("fill the API server: %w", err)
		}
		r, err := b.measure()
		if err != nil {
			return err
		}
		return printWhole(w, o, r)
	})
}

// clusterBench is where the program is measured.
type clusterBench struct {
	*apiserver.Cluster
	t       *reporter
	o       options
	program string
	lab     *lab.Lab
	client  *lab.Host
	pods    [2]*lab.Host // behind the Services that are probed
	probed  []int
}

// probes is how many Services, spread over all, have real pods behind them.
const probes = 20

func newClusterBench(t *reporter, o options, program string) *clusterBench {
	b := &clusterBench{Cluster: apiserver.Start(t), t: t, o: o, program: program}
	b.lab = lab.New(t, lab.Options{Timeout: 20 * time.Millisecond})
	b.client = b.lab.Pod(b.lab.NodeA, "10.180.0.9")
	for i := range b.pods {
		b.pods[i] = b.lab.Pod(b.lab.NodeA, fmt.Sprintf("10.180.1.%d", i+1))
		b.pods[i].Serve(lab.TCP, podPort)
	}
	b.Forward(t, b.lab.NodeA)
	for i := range probes {
		b.probed = append(b.probed, i*(o.cluster-1)/(probes-1))
	}
	return b
}

func (b *clusterBench) measure() (whole, error) {
	var r whole
	p, err := b.launch()
	if err != nil {
		return r, err
	}
	if err := b.reachable(); err != nil {
		return r, fmt.Errorf("%w; the program said: %s", err, p.log.String())
	}
	r.Start = time.Since(p.began)
	before, err := p.cpu()
	if err != nil {
		return r, err
	}
	took, err := b.change()
	if err != nil {
		return r, err
	}
	after, err := p.cpu()
	if err != nil {
		return r, err
	}
	r.P50, r.P99 = took[len(took)/2], took[len(took)*99/100]
	r.CPU = (after - before) / time.Duration(len(took))
	if r.PeakRSS, err = peakRSS(fmt.Sprint(p.cmd.Process.Pid)); err != nil {
		return r, err
	}
	r.Direct, r.Via = b.connects(netip.AddrPortFrom(b.pods[0].Addr4(), podPort), serviceTarget(b.probed[0]))
	if err := p.end(); err != nil {
		return r, err
	}
	r.Again, err = b.again()
	return r, err
}

// reachable waits until every probed Service answers.
func (b *clusterBench) reachable() error {
	deadline := time.Now().Add(10 * time.Minute)
	for _, i := range b.probed {
		for b.client.Dial(lab.TCP, serviceTarget(i)).Outcome != lab.Answered {
			if time.Now().After(deadline) {
				return fmt.Errorf("no answer of Service %d", i)
			}
		}
	}
	return nil
}

// change moves probed Services between the pods, one at a time, and times each
// from the API write to the first new connection on the new backend.
func (b *clusterBench) change() ([]time.Duration, error) {
	ctx := context.Background()
	var took []time.Duration
	for n := range b.o.changes {
		i, pod := b.probed[n%probes], b.pods[(n/probes+1)%2]
		began := time.Now()
		if err := b.move(ctx, i, pod.Addr4()); err != nil {
			return nil, err
		}
		for b.client.Dial(lab.TCP, serviceTarget(i)).Backend.Addr() != pod.Addr4() {
			if time.Since(began) > time.Minute {
				return nil, fmt.Errorf("change %d of Service %d did not arrive", n, i)
			}
		}
		took = append(took, time.Since(began))
		time.Sleep(10 * time.Millisecond) // apart, so that each is one of its own
	}
	slices.Sort(took)
	return took, nil
}

// connects is how long a connection takes to be made, p50: straight to a pod,
// and through a Service. They take turns, so that neither has the quieter half.
func (b *clusterBench) connects(pod, service netip.AddrPort) (direct, via time.Duration) {
	var took [2][]time.Duration
	for range 2000 {
		for i, to := range []netip.AddrPort{pod, service} {
			if r := b.client.Dial(lab.TCP, to); r.Outcome == lab.Answered {
				took[i] = append(took[i], r.Took)
			}
		}
	}
	same := func(d time.Duration) time.Duration { return d }
	return median(took[0], same), median(took[1], same)
}
