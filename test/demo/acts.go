//go:build linux

package main

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// balance counts who answers, over every way.
func (t *tour) balance() error {
	const requests = 300
	t.head(fmt.Sprintf("Balance: %d connections each way, and which pod answered", requests))
	backends := t.pods[:3]
	t.note("%-46s%-15s%-15s%s", "from     to", "A1", "A2", "B1")
	worst := 1.0
	for _, p := range t.ways() {
		results := p.from.Repeat(requests, lab.Probe{Protocol: lab.TCP, To: p.to})
		counts := map[netip.Addr]int{}
		for backend, n := range lab.Spread(results) {
			counts[backend.Addr()] += n
		}
		spread := perPod(counts, backends)
		t.say("%s%s", p, t.bars(spread, 8))
		if answered := lab.Outcomes(results)[lab.Answered]; answered != requests {
			t.fail("%d of %d had no answer: %s", requests-answered, requests, results[0])
		}
		worst = min(worst, chance(spread))
	}
	if worst < unfair {
		t.fail("The spread is not what fair chance gives (p = %.1g).", worst)
		return nil
	}
	t.pass("Every connection answered, every backend its share.")
	t.learn("Balance", "%s connections over %d ways, all answered, evenly", count(requests*len(t.ways())), len(t.ways()))
	return nil
}

// latency compares the way through a service with the way past it.
func (t *tour) latency() error {
	const rounds = 400
	t.head("Latency: time to connect, through the Service and straight to its pods")
	t.note("%-45s%12s%20s%13s", "", "Service", "straight", "extra")
	t.note("%-45s%8s%9s%11s%9s%10s", "from     to", "median", "p99", "median", "p99", "median")
	var through, straight []time.Duration
	for _, p := range t.ways() {
		r := race{from: p.from, service: p.to}
		for _, backend := range t.pods[:3] {
			r.direct = append(r.direct, netip.AddrPortFrom(backend.Addr(p.to.Addr()), webPort))
		}
		l, err := r.run(rounds)
		if err != nil {
			t.fail("%s: %v", p.to, err)
			continue
		}
		service, direct := quantile(l.service, 0.5), quantile(l.direct, 0.5)
		t.say("%-45s%8s%9s%11s%9s%s", p, micros(service), micros(quantile(l.service, 0.99)),
			micros(direct), micros(quantile(l.direct, 0.99)), t.paint(strong, fmt.Sprintf("%10s", micros(service-direct))))
		through, straight = append(through, l.service...), append(straight, l.direct...)
	}
	a, b := quantile(through, 0.5), quantile(straight, 0.5)
	t.pass("%s connections each: median %s through a Service, %s straight.", count(len(through)), micros(a), micros(b))
	t.learn("Latency", "connect: median %s through a Service, %s straight to a pod", micros(a), micros(b))
	return nil
}

// promises shows what else a Service can ask for.
func (t *tour) promises() error {
	t.head("What a Service can ask for")
	t.affinity()
	t.ranges()
	t.source()
	t.selector()
	return nil
}

func (t *tour) affinity() {
	const requests = 30
	results := t.client.Repeat(requests, lab.Probe{Protocol: lab.TCP, To: netip.MustParseAddrPort("10.96.0.30:80")})
	spread := lab.Spread(results)
	if len(spread) != 1 || lab.Outcomes(results)[lab.Answered] != requests {
		t.fail("Session affinity: %d requests of one client went to %d backends, %d were answered.",
			requests, len(spread), lab.Outcomes(results)[lab.Answered])
		return
	}
	t.pass("%-24s%d requests of one client, all to one backend", "Session affinity", requests)
}

func (t *tour) ranges() {
	vip := netip.MustParseAddrPort("198.51.100.10:80")
	in := t.Outside.Dial(lab.TCP, vip)
	out := t.Blocked.Try(lab.Probe{Protocol: lab.TCP, To: vip, Timeout: lab.Soon})
	if in.Outcome != lab.Answered || out.Outcome != lab.TimedOut {
		t.fail("Source ranges: a client inside was %s, one outside %s.", in.Outcome, out.Outcome)
		return
	}
	t.pass("%-24s%s is let in, %s is not", "Source ranges", t.Outside.Addr4(), t.Blocked.Addr4())
}

func (t *tour) source() {
	const requests = 20
	want := t.pods[0].Addr4()
	for range requests {
		r := t.Outside.Dial(lab.TCP, netip.MustParseAddrPort("192.168.0.2:30040"))
		if r.Outcome != lab.Answered || r.Masqueraded() || r.Backend.Addr() != want {
			t.fail("Local traffic policy: %s; want A1, seeing the client.", r)
			return
		}
	}
	t.pass("%-24sstays on the node; the pod sees the client itself, %s", "Local traffic policy", t.Outside.Addr4())
}

func (t *tour) selector() {
	for _, to := range []string{"[fd00:10:96::50]:80", "10.96.0.50:80"} {
		if r := t.client.Dial(lab.TCP, netip.MustParseAddrPort(to)); r.Outcome != lab.Answered {
			t.fail("Pods by selector: %s was %s.", to, r)
			return
		}
	}
	t.pass("%-24sa Service finds its Pods in the manifests, in both IP families", "Selectors")
	t.learn("Promises", "session affinity, source ranges, local traffic policy, selectors")
}

// refuse shows a Service without endpoints.
func (t *tour) refuse() error {
	t.head("No endpoints: refused at once, instead of a time-out")
	if _, err := t.manifests.scale("web.yaml", nil); err != nil {
		return err
	}
	var slowest time.Duration
	for _, p := range t.webWays() {
		r := t.until(p, func(r lab.Result) bool { return r.Outcome != lab.Answered })
		if r.Outcome != lab.Refused && r.Outcome != lab.Reset {
			t.fail("%s: %s, want a refusal", p.to, r)
			continue
		}
		r = p.from.Dial(lab.TCP, p.to)
		t.say("%srefused in %s", p, micros(r.Took))
		slowest = max(slowest, r.Took)
	}
	t.learn("No endpoints", "refused within %s", micros(slowest))
	if _, err := t.manifests.scale("web.yaml", addrs(t.pods[:3])); err != nil {
		return err
	}
	for _, p := range t.webWays() {
		if r := t.until(p, func(r lab.Result) bool { return r.Outcome == lab.Answered }); r.Outcome != lab.Answered {
			t.fail("%s with backends again: %s", p.to, r)
		}
	}
	t.pass("With three backends again, all of them answer.")
	return nil
}

// until makes requests until one ends as wanted, for two seconds at most.
func (t *tour) until(p path, wanted func(lab.Result) bool) lab.Result {
	deadline := time.Now().Add(2 * time.Second)
	for {
		r := p.request()
		if wanted(r) || time.Now().After(deadline) {
			return r
		}
	}
}
