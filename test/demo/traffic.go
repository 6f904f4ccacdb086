//go:build linux

package main

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// path is a way to a service.
type path struct {
	from *lab.Host
	who  string // from, for people
	kind string
	to   netip.AddrPort

	timeout time.Duration // of requests; the lab's if zero
}

// request makes one.
func (p path) request() lab.Result {
	return p.from.Try(lab.Probe{Protocol: lab.TCP, To: p.to, Timeout: p.timeout})
}

// request is one that was made: a connection, and an answer on it.
type request struct {
	begun, ended time.Time
	result       lab.Result
}

// traffic is requests at a steady rate.
type traffic struct {
	quit chan struct{}
	wait sync.WaitGroup

	mu   sync.Mutex
	made []request
}

const perPath = 250 // requests each second

// startTraffic makes requests over all paths until it is stopped. Each path has
// two clients, so that one slow answer does not hold up the rate. Clients take
// turns, so that requests are spread over time.
func startTraffic(paths []path) *traffic {
	const clients = 2
	const each = time.Second * clients / perPath
	t := &traffic{quit: make(chan struct{})}
	all := clients * len(paths)
	for i := range all {
		t.wait.Go(func() {
			time.Sleep(each * time.Duration(i) / time.Duration(all))
			t.send(paths[i/clients], each)
		})
	}
	return t
}

func (t *traffic) send(p path, each time.Duration) {
	tick := time.NewTicker(each)
	defer tick.Stop()
	for {
		select {
		case <-t.quit:
			return
		case <-tick.C:
		}
		begun := time.Now()
		r := request{begun: begun, result: p.request()}
		r.ended = time.Now()
		t.mu.Lock()
		t.made = append(t.made, r)
		t.mu.Unlock()
	}
}

// stop waits for the last answers and returns all requests, by their beginning.
func (t *traffic) stop() requests {
	close(t.quit)
	t.wait.Wait()
	slices.SortFunc(t.made, func(a, b request) int { return a.begun.Compare(b.begun) })
	return t.made
}

// requests are in the order they were begun.
type requests []request

// lost returns those without an answer.
func (r requests) lost() requests {
	return slices.DeleteFunc(slices.Clone(r), func(q request) bool { return q.result.Outcome == lab.Answered })
}

// times says how long each took, connection and answer.
func (r requests) times() []time.Duration {
	var out []time.Duration
	for _, q := range r {
		out = append(out, q.ended.Sub(q.begun))
	}
	return out
}

// between returns those that began in a span of time.
func (r requests) between(from, to time.Time) requests {
	return slices.DeleteFunc(slices.Clone(r), func(q request) bool {
		return q.begun.Before(from) || !q.begun.Before(to)
	})
}

// answeredBy returns those that one of the backends answered.
func (r requests) answeredBy(backends []netip.Addr) requests {
	return slices.DeleteFunc(slices.Clone(r), func(q request) bool {
		return q.result.Outcome != lab.Answered || !slices.Contains(backends, q.result.Backend.Addr())
	})
}

// spread counts the answers of each pod.
func (r requests) spread(pods []pod) []int {
	counts := map[netip.Addr]int{}
	for _, q := range r {
		counts[q.result.Backend.Addr()]++
	}
	return perPod(counts, pods)
}

func perPod(counts map[netip.Addr]int, pods []pod) []int {
	var out []int
	for _, p := range pods {
		n := 0
		for _, a := range p.Addrs() {
			n += counts[a]
		}
		out = append(out, n)
	}
	return out
}

// why says how the first of them ended, for people.
func (r requests) why() string {
	if len(r) == 0 {
		return "none"
	}
	return r[0].result.String()
}
