//go:build linux

package main

import (
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// udp removes the backend that a UDP client with a fixed port talks to. The
// kernel alone would send such a flow to the same backend for ever.
func (t *tour) udp() error {
	t.head("UDP: a client with a fixed port, and its backend goes")
	from := netip.AddrPortFrom(t.client.Addr4(), 40053)
	to := netip.MustParseAddrPort("10.96.0.53:53")
	f, r := t.client.Open(lab.Probe{Protocol: lab.UDP, From: from, To: to})
	if f == nil {
		t.fail("UDP client: %s", r)
		return nil
	}
	defer f.Close()
	q := &questions{flow: f}
	q.ask(300*time.Millisecond, never)
	old := q.by
	if len(q.moves) != 1 {
		t.fail("%d backends answered before any change, want 1.", len(q.moves))
		return nil
	}
	stay := slices.DeleteFunc(addrs(t.pods[:3]), func(a netip.Addr) bool { return a == old || a.Is6() })
	now, err := t.manifests.scale("dns.yaml", stay)
	if err != nil {
		return err
	}
	q.ask(2*time.Second, func() bool { return len(q.moves) > 1 })
	q.ask(300*time.Millisecond, never)
	if !slices.Contains(stay, q.by) || len(q.moves) != 2 {
		t.fail("The client still talks to %s, which has left.", t.label(q.by))
		return nil
	}
	after := q.moves[1].Sub(now)
	t.say("%s → %s   %s answered, then %s", from, to, t.label(old), t.label(q.by))
	t.pass("Moved %s after the file was written. %s questions, unanswered %d.", millis(after), count(q.asked), q.unanswered)
	if q.unanswered > 1 {
		t.fail("More than the one question in flight was lost.")
	}
	t.learn("UDP", "flow of a fixed port moved after %s; %s questions, unanswered %d", millis(after), count(q.asked), q.unanswered)
	return nil
}

// questions are asked one after the other, a millisecond apart.
type questions struct {
	flow       *lab.Flow
	by         netip.Addr // who answered last
	moves      []time.Time
	asked      int
	unanswered int
}

func never() bool { return false }

// ask asks for a span of time, or until there is enough.
func (q *questions) ask(span time.Duration, enough func() bool) {
	for deadline := time.Now().Add(span); time.Now().Before(deadline) && !enough(); time.Sleep(time.Millisecond) {
		r := q.flow.AskWithin([]byte("who?"), lab.Soon)
		q.asked++
		if r.Outcome != lab.Answered {
			q.unanswered++
			continue
		}
		if r.Backend.Addr() != q.by {
			q.by = r.Backend.Addr()
			q.moves = append(q.moves, time.Now())
		}
	}
}

// label names a pod by its address.
func (t *tour) label(a netip.Addr) string {
	for _, p := range t.pods {
		if slices.Contains(p.Addrs(), a) {
			return p.label
		}
	}
	return a.String()
}
