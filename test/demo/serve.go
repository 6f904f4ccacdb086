//go:build linux

package main

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

// balance counts the answers of each pod, over all ways.
func (t *tour) balance() error {
	const connections = 300
	t.head("Balance: %d connections each way, and which pod answered", connections)
	t.note("%-46s%-15s%-15s%s", "from     to", "A1", "A2", "B1")
	failed := len(t.failures)
	for _, w := range t.ways() {
		results := w.from.Repeat(connections, lab.Probe{Protocol: lab.TCP, To: w.to})
		counts := perPod(results, t.pods[:3])
		t.say("%s%s", w, t.bars(counts))
		if n := lab.Outcomes(results)[lab.Answered]; n != connections {
			t.fail("%d of %d had no answer, the first was %s", connections-n, connections, results[0])
		} else if !fair(counts) {
			t.fail("A fair random balance does not explain these shares.")
		}
	}
	if len(t.failures) == failed {
		t.pass("All connections were answered, and all pods had their share.")
		t.addFact("Balance", "%s connections over %d ways, all answered, evenly",
			count(connections*len(t.ways())), len(t.ways()))
	}
	return nil
}

// latency compares connections through a Service and directly to its pods, alternately, so that
// other load of the machine affects both.
func (t *tour) latency() error {
	const rounds = 400
	t.head("Latency: time to connect, through the Service and straight to its pods")
	t.note("%-45s%12s%20s%13s", "", "Service", "straight", "extra")
	t.note("%-45s%8s%9s%11s%9s%10s", "from     to", "median", "p99", "median", "p99", "median")
	var through, straight []time.Duration
	for _, w := range t.ways() {
		var service, direct []time.Duration
		for i := range rounds {
			pod := netip.AddrPortFrom(t.pods[i%3].Addr(w.to.Addr()), webPort)
			a, b := w.from.Dial(lab.TCP, pod), w.from.Dial(lab.TCP, w.to)
			if a.Outcome != lab.Answered || b.Outcome != lab.Answered {
				t.fail("%s: straight %s, through the Service %s", w, a, b)
				return nil
			}
			direct, service = append(direct, a.Connected), append(service, b.Connected)
		}
		median, base := harness.Quantile(service, 0.5), harness.Quantile(direct, 0.5)
		t.say("%-45s%8s%9s%11s%9s%s", w, micros(median), micros(harness.Quantile(service, 0.99)), micros(base),
			micros(harness.Quantile(direct, 0.99)), t.paint(strong, fmt.Sprintf("%10s", micros(median-base))))
		through, straight = append(through, service...), append(straight, direct...)
	}
	a, b := micros(harness.Quantile(through, 0.5)), micros(harness.Quantile(straight, 0.5))
	t.pass("%s connections each: median %s through a Service, %s straight.", count(len(through)), a, b)
	t.addFact("Latency", "connect: median %s through a Service, %s straight to a pod", a, b)
	return nil
}

// features demonstrates further features of Services.
func (t *tour) features() error {
	t.head("What a Service can ask for")
	at := netip.MustParseAddrPort
	const requests = 30
	results := t.client.Repeat(requests, lab.Probe{Protocol: lab.TCP, To: at("10.96.0.30:80")})
	if n := lab.Outcomes(results)[lab.Answered]; n != requests || len(lab.Spread(results)) != 1 {
		t.fail("Session affinity: %d of %d requests of one client were answered, by %d backends.", n,
			requests, len(lab.Spread(results)))
	} else {
		t.pass("%-24s%d requests of one client, all to one backend", "Session affinity", requests)
	}

	vip := at("198.51.100.10:80")
	in, out := t.Outside.Dial(lab.TCP, vip), t.Blocked.Try(lab.Probe{Protocol: lab.TCP, To: vip, Timeout: lab.Soon})
	if in.Outcome != lab.Answered || out.Outcome != lab.TimedOut {
		t.fail("Source ranges: a client inside was %s, one outside %s.", in.Outcome, out.Outcome)
	} else {
		t.pass("%-24s%s is allowed, %s is not", "Source ranges", t.Outside.Addr4(), t.Blocked.Addr4())
	}

	results = t.Outside.Repeat(20, lab.Probe{Protocol: lab.TCP, To: at("192.168.0.2:30040")})
	wrong := slices.IndexFunc(results, func(r lab.Result) bool {
		return r.Outcome != lab.Answered || r.Masqueraded() || r.Backend.Addr() != t.pods[0].Addr4()
	})
	if wrong >= 0 {
		t.fail("Local traffic policy: %s; want A1, which sees the client.", results[wrong])
	} else {
		t.pass("%-24sstays on the node; the pod sees the client itself, %s", "Local traffic policy", t.Outside.Addr4())
	}

	r4, r6 := t.client.Dial(lab.TCP, at("10.96.0.50:80")), t.client.Dial(lab.TCP, at("[fd00:10:96::50]:80"))
	if r4.Outcome != lab.Answered || r6.Outcome != lab.Answered {
		t.fail("Selectors: IPv4 was %s, IPv6 %s.", r4, r6)
		return nil
	}
	t.pass("%-24sa Service finds its Pods in the manifests, in both IP families", "Selectors")
	t.addFact("Features", "session affinity, source ranges, local traffic policy, selectors")
	return nil
}

// refuse shows a Service without endpoints.
func (t *tour) refuse() error {
	t.head("No endpoints: refused at once, instead of a timeout")
	if _, err := t.files.scale("web.yaml", nil); err != nil {
		return err
	}
	var slowest time.Duration
	for _, w := range t.webWays() {
		r := until(w, func(o lab.Outcome) bool { return o != lab.Answered })
		if r.Outcome != lab.Refused && r.Outcome != lab.Reset {
			t.fail("%s: %s, want a refusal", w, r)
			continue
		}
		took := w.request().Took
		t.say("%srefused in %s", w, micros(took))
		slowest = max(slowest, took)
	}
	t.addFact("No endpoints", "refused within %s", micros(slowest))
	if _, err := t.files.scale("web.yaml", addrs(t.pods[:3])); err != nil {
		return err
	}
	for _, w := range t.webWays() {
		if r := until(w, answered); r.Outcome != lab.Answered {
			t.fail("%s with backends again: %s", w, r)
		}
	}
	t.pass("With three backends again, all of them answer.")
	return nil
}

// udp removes the backend of a UDP client with a fixed port. The kernel alone
// would send this flow to the same backend forever.
func (t *tour) udp() error {
	t.head("UDP: a client with a fixed port, and its backend goes")
	from, to := netip.AddrPortFrom(t.client.Addr4(), 40053), netip.MustParseAddrPort("10.96.0.53:53")
	flow, r := t.client.Open(lab.Probe{Protocol: lab.UDP, From: from, To: to})
	if flow == nil {
		t.fail("UDP client: %s", r)
		return nil
	}
	defer flow.Close()
	var backend netip.Addr // the one that answered last
	var moves []time.Time
	asked, unanswered := 0, 0
	ask := func(span time.Duration, moved int) {
		for end := time.Now().Add(span); time.Now().Before(end) && len(moves) < moved; time.Sleep(time.Millisecond) {
			r := flow.AskWithin([]byte("who?"), lab.Soon)
			asked++
			if r.Outcome != lab.Answered {
				unanswered++
			} else if r.Backend.Addr() != backend {
				backend, moves = r.Backend.Addr(), append(moves, time.Now())
			}
		}
	}
	ask(300*time.Millisecond, 9)
	old := backend
	stay := slices.DeleteFunc(addrs(t.pods[:3]), func(a netip.Addr) bool { return a == old })
	now, err := t.files.scale("dns.yaml", stay)
	if err != nil {
		return err
	}
	ask(2*time.Second, 2)
	ask(300*time.Millisecond, 9)
	if len(moves) != 2 || !slices.Contains(stay, backend) {
		t.fail("The flow moved %d times and is on %s, want one move away from %s.", len(moves)-1,
			t.label(backend), t.label(old))
		return nil
	}
	after := millis(moves[1].Sub(now))
	t.say("%s → %s   %s answered, then %s", from, to, t.label(old), t.label(backend))
	t.pass("Moved %s after the file was written. %s questions, unanswered %d.", after, count(asked), unanswered)
	if unanswered > 1 {
		t.fail("More than the one question in flight was lost.")
	}
	t.addFact("UDP", "flow of a fixed port moved after %s; %s questions, unanswered %d", after, count(asked), unanswered)
	return nil
}

// label returns the name of the pod with an address.
func (t *tour) label(a netip.Addr) string {
	for _, p := range t.pods {
		if slices.Contains(p.Addrs(), a) {
			return p.label
		}
	}
	return a.String()
}
