//go:build linux

package main

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// start measures from the start of the process. The probed Services are asked
// one after the other until each has answered.
func (n *node) start(r *result) error {
	if err := n.launch(); err != nil {
		return err
	}
	var s started
	left := n.probed
	err := n.proxy.wait(n.o.limit, "every probed Service reachable", func() error {
		for len(left) > 0 {
			if _, err := n.reaches(left[0]); err != nil {
				return err
			}
			left = left[1:]
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.Reachable = time.Since(n.proxy.began)
	if s.Synced, err = n.proxy.synced(n.o.limit); err != nil {
		return err
	}
	if s.CPU, err = n.proxy.cpu(); err != nil {
		return err
	}
	if s.Peak, err = n.watch.peak(); err != nil {
		return err
	}
	r.Start = &s
	return nil
}

// idle measures what doing nothing costs, after the start is over.
func (n *node) idle(r *result) error {
	n.quiet()
	cpu, err := n.spent(func() error {
		time.Sleep(n.o.idle)
		return nil
	})
	r.Idle = &idled{Length: n.o.idle, CPU: cpu}
	return err
}

// quiet waits until what was done before has no further effect.
func (n *node) quiet() { time.Sleep(2 * n.kind.gap) }

// change moves probed Services between the pods, one at a time, and times each
// from before the API write to the first new connection on the new backend.
func (n *node) change(r *result) error {
	n.quiet()
	var took []time.Duration
	cpu, err := n.spent(func() error {
		end := time.Now().Add(n.o.changing)
		for i := range n.o.changes {
			if time.Now().After(end) {
				return nil
			}
			d, err := n.isolated(n.probed[i%probes])
			if err != nil {
				return err
			}
			took = append(took, d)
			time.Sleep(n.kind.gap)
		}
		return nil
	})
	if err != nil {
		return err
	}
	r.Change = &changed{Seen: spreadOf(took), CPU: cpu / time.Duration(len(took))}
	return nil
}

func (n *node) isolated(i int) (time.Duration, error) {
	began := time.Now()
	want, err := n.move(i)
	if err != nil {
		return 0, err
	}
	err = n.proxy.wait(n.o.limit, "a new connection on the new backend", func() error {
		got, err := n.reaches(i)
		if err == nil && got != want {
			err = fmt.Errorf("service %d is still on %s", i, got)
		}
		return err
	})
	return time.Since(began), err
}

// connect times connect() straight to a pod and through a Service, in turns, of
// which each is first every other time.
func (n *node) connect(r *result) error {
	i := n.probed[probes/2]
	var pod netip.Addr
	err := n.proxy.wait(n.o.limit, "an answer", func() (err error) {
		pod, err = n.reaches(i)
		return err
	})
	if err != nil {
		return err
	}
	to := [2]netip.AddrPort{netip.AddrPortFrom(pod, podPort), target(i)}
	var took [2][]time.Duration
	for turn := range n.o.connects {
		for k := range to {
			which := (k + turn) % 2
			if r := n.client.Dial(lab.TCP, to[which]); r.Outcome == lab.Answered {
				took[which] = append(took[which], r.Took)
			}
		}
	}
	r.Connect = &connected{Direct: spreadOf(took[0]), Via: spreadOf(took[1])}
	return nil
}

// restart starts the proxy over what it left.
func (n *node) restart(r *result) error {
	if err := n.launch(); err != nil {
		return err
	}
	took, err := n.proxy.synced(n.o.limit)
	if err != nil {
		return err
	}
	cpu, err := n.proxy.cpu()
	if err != nil {
		return err
	}
	r.Restart = &restarted{Synced: took, CPU: cpu, Steps: steps(n.proxy.log.String())}
	return n.halt()
}

// steps is how many the first comparison took, as Sluice logs; -1 if that is not
// there.
func steps(log string) int {
	m := regexp.MustCompile(`msg=Synced .*steps=(\d+).*cause=start`).FindStringSubmatch(log)
	if m == nil {
		return -1
	}
	count, _ := strconv.Atoi(m[1]) // digits
	return count
}

// syncTimes finds how long every write took, in a log of Sluice at verbosity 4.
func syncTimes(log string) []time.Duration {
	var out []time.Duration
	for _, m := range regexp.MustCompile(`msg=Synced .*compile=(\S+) apply=(\S+)`).FindAllStringSubmatch(log, -1) {
		compile, err := time.ParseDuration(m[1])
		if err != nil {
			continue
		}
		if apply, err := time.ParseDuration(m[2]); err == nil {
			out = append(out, compile+apply)
		}
	}
	return out
}
