//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/test/bench/fetch"
	"github.com/sluice-proxy/sluice/test/bench/filled"
	"github.com/sluice-proxy/sluice/test/lab"
)

// bareRounds is how often a bare client fetches everything; the medians count.
const bareRounds = 5

// bare measures clients that only fetch the same objects as Sluice, and decode them.
func (n *node) bare(r *result) error {
	config, err := n.UserConfig()
	if err != nil {
		return err
	}
	pid, err := n.ServerPID()
	if err != nil {
		return err
	}
	for key, all := range map[string]fetch.Bare{"bare.list": fetch.List, "bare.stream": fetch.Stream} {
		var costs []fetch.Cost
		for range bareRounds {
			cost, err := fetch.Measure(pid, func() error {
				got, err := all(context.Background(), config)
				if err == nil && min(got[0], got[1]) < n.Services {
					err = fmt.Errorf("got %d Services and %d EndpointSlices", got[0], got[1])
				}
				return err
			})
			if err != nil {
				return err
			}
			costs = append(costs, cost)
		}
		median := fetch.Median(costs)
		r.duration(key, median.Took)
		r.duration(key+".cpu", median.Client)
		r.duration(key+".server", median.Server)
	}
	return nil
}

// start measures from the start of the process until each probed Service, one after another, has answered.
func (n *node) start(r *result) error {
	if err := n.launch(); err != nil {
		return err
	}
	left := n.probed
	err := n.proxy.Until(n.limit, "every probed Service reachable", func() error {
		for ; len(left) > 0; left = left[1:] {
			if _, err := n.connectOnce(left[0]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	r.duration("start.reachable", time.Since(n.proxy.Began))
	r.ratio("start.bare", "start.reachable", "bare.list")
	return errors.Join(n.synced("start", r), n.peak("start.peak", r))
}

// synced waits for the end of the first sync and records when that was and the
// CPU time until then. Both proxies have the metric.
func (n *node) synced(key string, r *result) error {
	var at float64
	err := n.proxy.Until(n.limit, "everything written", func() error {
		m, err := n.metrics()
		if err != nil {
			return err
		}
		if at = m.highest("kubeproxy_sync_proxy_rules_last_timestamp_seconds"); at == 0 {
			time.Sleep(10 * time.Millisecond) // reading metrics costs the proxy CPU time
			return errors.New("no sync has ended yet")
		}
		return nil
	})
	if err != nil {
		return err
	}
	r.duration(key+".synced", time.Duration(at*1e9)-time.Duration(n.proxy.Began.UnixNano()))
	cpu, err := n.proxy.CPU()
	r.duration(key+".cpu", cpu)
	return err
}

// idle measures the CPU time of an idle proxy.
func (n *node) idle(r *result) error {
	n.quiet()
	cpu, err := n.spent(func() error {
		time.Sleep(n.amounts.idle)
		return nil
	})
	r.share("idle", cpu, n.amounts.idle)
	return err
}

// quiet waits until earlier changes have no further effect.
func (n *node) quiet() { time.Sleep(2 * n.kind.gap) }

// change moves probed Services between the pods, one at a time, and times each
// from before the API write to the first new connection on the new backend.
func (n *node) change(r *result) error {
	n.quiet()
	var took []time.Duration
	var cpu time.Duration
	err := n.toKernel("change.kernel", r, func() (err error) {
		cpu, err = n.spent(func() error { return n.isolatedChanges(&took) })
		return err
	})
	if err != nil {
		return err
	}
	r.spread("change", took)
	r.duration("change.cpu", cpu/time.Duration(len(took)))
	return nil
}

func (n *node) isolatedChanges(took *[]time.Duration) error {
	end := time.Now().Add(n.changing)
	for i := 0; i < n.changes && time.Now().Before(end); i++ {
		d, err := n.isolated(n.probed[i%probes])
		if err != nil {
			return err
		}
		*took = append(*took, d)
		time.Sleep(n.kind.gap)
	}
	return nil
}

func (n *node) isolated(i int) (time.Duration, error) {
	began := time.Now()
	want, err := n.move(i)
	if err != nil {
		return 0, err
	}
	err = n.proxy.Until(n.limit, "a new connection on the new backend", func() error {
		got, err := n.connectOnce(i)
		if err == nil && got != want {
			err = fmt.Errorf("service %d is still on %s", i, got)
		}
		return err
	})
	return time.Since(began), err
}

// connect times connections to a pod and through a Service, alternating which is first.
func (n *node) connect(r *result) error {
	i := n.probed[probes/2]
	var pod netip.Addr
	err := n.proxy.Until(n.limit, "an answer", func() (err error) {
		pod, err = n.connectOnce(i)
		return err
	})
	if err != nil {
		return err
	}
	to := [2]netip.AddrPort{netip.AddrPortFrom(pod, filled.PodPort), filled.Target(i)}
	var took [2][]time.Duration
	for turn := range n.connects {
		for k := range to {
			which := (k + turn) % 2
			if r := n.client.Dial(lab.TCP, to[which]); r.Outcome == lab.Answered {
				took[which] = append(took[which], r.Took)
			}
		}
	}
	r.spread("direct", took[0])
	r.spread("connect", took[1])
	for _, q := range []string{".p50", ".p90"} {
		r.ratio("ratio"+q, "connect"+q, "direct"+q)
	}
	return nil
}

// heap records the heap profile of Sluice.
func (n *node) heap(r *result) error {
	if !isSluice(n.kind.name) {
		return nil
	}
	profile, err := n.proxy.Get("http://" + metricsAddress + "/debug/pprof/heap?gc=1")
	if err != nil {
		return err
	}
	path := filepath.Join(n.dir, "heap.pprof")
	if err := os.WriteFile(path, profile, 0o600); err != nil {
		return err
	}
	out, err := exec.Command("go", "tool", "pprof", "-top", "-sample_index=inuse_space",
		"-nodecount=20", n.program, path).Output()
	if err != nil {
		return fmt.Errorf("read the heap profile: %w", err)
	}
	const begin = "Showing nodes" // the lines before it contain file names
	_, text, _ := strings.Cut(string(out), begin)
	r.Heap = begin + strings.TrimRight(text, "\n")
	return nil
}

// restart restarts the proxy with its rules still in the kernel.
func (n *node) restart(r *result) error {
	if err := n.launch(); err != nil {
		return err
	}
	if err := n.synced("restart", r); err != nil {
		return err
	}
	r.ratio("restart.bare", "restart.synced", "bare.list")
	err := errors.Join(n.peak("restart.peak", r), n.halt())
	r.count("restart.steps", firstSteps(n.proxy.Log.String())) // the log is complete now
	return err
}

// firstSteps returns the number of steps of the first sync in a log of Sluice; -1 if the log has none.
func firstSteps(log string) int {
	m := regexp.MustCompile(`msg=Synced .*steps=(\d+).*cause=start`).FindStringSubmatch(log)
	if m == nil {
		return -1
	}
	count, _ := strconv.Atoi(m[1]) // digits
	return count
}

// syncTimes returns how long each sync took, from a log of Sluice at verbosity 4.
func syncTimes(log string) []time.Duration {
	var out []time.Duration
	for _, m := range regexp.MustCompile(`msg=Synced .*compile=(\S+) apply=(\S+)`).FindAllStringSubmatch(log, -1) {
		compile, err := time.ParseDuration(m[1])
		apply, err2 := time.ParseDuration(m[2])
		if err == nil && err2 == nil {
			out = append(out, compile+apply)
		}
	}
	return out
}
