//go:build linux

package main

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// way is a client and an address of a Service.
type way struct {
	from   *lab.Host
	client string // name of from in tables
	kind   string // of the address
	to     netip.AddrPort

	timeout time.Duration // of requests; the lab's if zero
}

// String returns the columns of a table.
func (w way) String() string { return fmt.Sprintf("%-9s%-14s%-23s", w.client, w.kind, w.to) }

func (w way) request() lab.Result {
	return w.from.Try(lab.Probe{Protocol: lab.TCP, To: w.to, Timeout: w.timeout})
}

// withTimeout returns the ways with another timeout. If it is shorter than a second, after which TCP
// retransmits a lost SYN, each lost packet is a lost request.
func withTimeout(ways []way, timeout time.Duration) []way {
	out := slices.Clone(ways)
	for i := range out {
		out[i].timeout = timeout
	}
	return out
}

// request is a new connection, with an answer on it or without.
type request struct {
	began, ended time.Time
	result       lab.Result
}

// requests are ordered by their start time.
type requests []request

const perWay = 250 // requests each second

// startTraffic makes requests at a steady rate until stop. Each way has two
// clients, so that one slow answer does not lower the rate.
func startTraffic(ways []way) (stop func() requests) {
	const clients = 2
	const period = time.Second * clients / perWay
	quit := make(chan struct{})
	made := make([]requests, clients*len(ways))
	var wait sync.WaitGroup
	for i := range made {
		wait.Go(func() {
			time.Sleep(period * time.Duration(i) / time.Duration(len(made)))
			made[i] = repeat(quit, period, ways[i/clients])
		})
	}
	return sync.OnceValue(func() requests {
		close(quit)
		wait.Wait()
		all := slices.Concat(made...)
		slices.SortFunc(all, func(a, b request) int { return a.began.Compare(b.began) })
		return all
	})
}

func repeat(quit <-chan struct{}, period time.Duration, w way) (made requests) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-quit:
			return made
		case <-tick.C:
		}
		began := time.Now()
		result := w.request()
		made = append(made, request{began, time.Now(), result})
	}
}

// startQuestions opens connections, evenly over the ways, and sends a request on each every 20 ms
// until stop, which returns the numbers of requests and of those without an answer.
func startQuestions(ways []way, connections int) (stop func() (asked, unanswered int), err error) {
	quit := make(chan struct{})
	counts := make([][2]int, connections)
	var wait sync.WaitGroup
	stop = sync.OnceValues(func() (asked, unanswered int) {
		close(quit)
		wait.Wait()
		for _, c := range counts {
			asked, unanswered = asked+c[0], unanswered+c[1]
		}
		return asked, unanswered
	})
	for i := range connections {
		w := ways[i%len(ways)]
		flow, r := w.from.Open(lab.Probe{Protocol: lab.TCP, To: w.to})
		if flow == nil {
			stop()
			return nil, fmt.Errorf("%s: %s", w, r)
		}
		wait.Go(func() { counts[i][0], counts[i][1] = ask(quit, flow) })
	}
	return stop, nil
}

func ask(quit <-chan struct{}, flow *lab.Flow) (asked, unanswered int) {
	defer flow.Close()
	for {
		select {
		case <-quit:
			return asked, unanswered
		case <-time.After(20 * time.Millisecond):
		}
		asked++
		if flow.Ask([]byte("ping")).Outcome != lab.Answered {
			unanswered++
		}
	}
}

func (r requests) where(keep func(request) bool) requests {
	return slices.DeleteFunc(slices.Clone(r), func(q request) bool { return !keep(q) })
}

// lost returns the requests without an answer.
func (r requests) lost() requests {
	return r.where(func(q request) bool { return q.result.Outcome != lab.Answered })
}

// between returns the requests that began in [from, to).
func (r requests) between(from, to time.Time) requests {
	return r.where(func(q request) bool { return !q.began.Before(from) && q.began.Before(to) })
}

// answeredBy returns the requests that one of the backends answered.
func (r requests) answeredBy(backends []netip.Addr) requests {
	return r.where(func(q request) bool {
		return q.result.Outcome == lab.Answered && slices.Contains(backends, q.result.Backend.Addr())
	})
}

func (r requests) during(g gap) requests {
	return r.where(func(q request) bool { return !q.ended.Before(g.began) && !q.began.After(g.ended) })
}

// times returns how long each took, connection and answer.
func (r requests) times() []time.Duration {
	var out []time.Duration
	for _, q := range r {
		out = append(out, q.ended.Sub(q.began))
	}
	return out
}

func (r requests) results() []lab.Result {
	var out []lab.Result
	for _, q := range r {
		out = append(out, q.result)
	}
	return out
}

// perPod counts the answers of each pod, in either family.
func perPod(results []lab.Result, pods []pod) []int {
	spread := lab.Spread(results)
	out := make([]int, len(pods))
	for i, p := range pods {
		for backend, n := range spread {
			if slices.Contains(p.Addrs(), backend.Addr()) {
				out[i] += n
			}
		}
	}
	return out
}

// fair reports whether the counts are consistent with uniform random balancing. In a run of the demo
// the probability of a false alarm is less than one in a million.
func fair(counts []int) bool {
	total := 0
	for _, n := range counts {
		total += n
	}
	lo, hi := lab.Bounds(total, 1/float64(len(counts)))
	return len(counts) < 2 || !slices.ContainsFunc(counts, func(n int) bool { return n < lo || n > hi })
}
