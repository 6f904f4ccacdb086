package eject

import (
	"fmt"
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

var start = time.Unix(1_800_000_000, 0)

func backends(n int) (list []netip.AddrPort) {
	for i := range n {
		list = append(list, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i / 250), byte(1 + i%250)}), 80))
	}
	return list
}

func client(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 1, byte(n / 250), byte(1 + n%250)}) }

func newPort(n int) Port {
	return Port{Limits: cluster.Ejection{Clients: 2, Row: 5}, Backends: backends(n)}
}

// failed returns the evidence of one failure for each of the clients.
func failed(clients int) Evidence {
	return Evidence{Failures: clients, Clients: clients, Row: 1, Observed: true}
}

// A backend is ejected when connections of two clients failed, or five of one client, and no connection succeeded.
func TestDecide(t *testing.T) {
	for _, c := range []struct {
		name  string
		e     Evidence
		leave bool
	}{
		{"two clients", failed(2), true},
		{"one client", failed(1), false},
		{"four of one client", Evidence{Failures: 4, Clients: 1, Row: 4, Observed: true}, false},
		{"five of one client", Evidence{Failures: 5, Clients: 1, Row: 5, Observed: true}, true},
		{"successes not observed", Evidence{Failures: 9, Clients: 9, Row: 1}, false},
		{"a success since", Evidence{Failures: 9, Clients: 9, Row: 1, Observed: true, Succeeded: true}, false},
	} {
		p := newPort(3)
		want := map[netip.AddrPort]State{}
		if c.leave {
			want[p.Backends[1]] = State{
				Phase: Ejected, Times: 1, Since: start, Next: start.Add(5 * time.Second),
				Failures: c.e.Failures, Clients: c.e.Clients,
			}
		}
		if d := cmp.Diff(want, p.Decide(map[netip.AddrPort]Evidence{p.Backends[1]: c.e}, start), compareAddrs()); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, d)
		}
	}
}

func compareAddrs() cmp.Option {
	return cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
}

// An ejected backend is tried, and comes back in steps. Each failure in a trial makes the next pause longer, up to a
// limit; after a minute without one the next ejection counts as the first.
func TestTheWayBack(t *testing.T) {
	p := newPort(3)
	b := p.Backends[0]
	now := start
	step := func(after time.Duration, e Evidence) string {
		now = now.Add(after)
		p.States = p.Decide(map[netip.AddrPort]Evidence{b: e}, now)
		s, has := p.States[b]
		return fmt.Sprintf("%t %d %s", has, s.Share().Part, s.Next.Sub(now))
	}
	none, idle := Evidence{Observed: true}, Evidence{Observed: true, Idle: true}
	success := Evidence{Observed: true, Succeeded: true}
	const never = time.Second
	for i, c := range []struct {
		after time.Duration
		e     Evidence
		want  string
	}{
		{0, failed(2), "true 0 5s"},
		{never, failed(2), "true 0 4s"},
		{4 * time.Second, none, "true 1"},
		{time.Second, failed(1), "true 0 10s"},
		{10 * time.Second, none, "true 1"},
		{time.Second, failed(1), "true 0 20s"},
		{20 * time.Second, none, "true 1"},
		{time.Second, failed(1), "true 0 20s"},
		{20 * time.Second, none, "true 1 100ms"},
		{100 * time.Millisecond, none, "true 0"},
		{time.Hour, none, "true 0"},
		{time.Second, idle, "true 1 200ms"},
		{200 * time.Millisecond, idle, "true 0"},
		{time.Second, success, "true 4 4s"},
		{4 * time.Second, none, "true 8 4s"},
		{4 * time.Second, none, "true 16 1m0s"},
		{30 * time.Second, failed(2), "true 0 20s"},
		{20 * time.Second, none, "true 1"},
		{time.Second, success, "true 4 4s"},
		{4 * time.Second, none, "true 8 4s"},
		{4 * time.Second, none, "true 16 1m0s"},
		{time.Minute, none, "false 16"},
		{0, failed(2), "true 0 5s"},
	} {
		if got := step(c.after, c.e); len(got) < len(c.want) || got[:len(c.want)] != c.want {
			t.Fatalf("step %d: %s, want %s", i, got, c.want)
		}
	}
	p.Limits = cluster.Ejection{}
	if got := p.Decide(nil, now); len(got) != 0 {
		t.Errorf("without limits: %v", got)
	}
}

// Whatever the evidence and the backends, no more backends are out than allowed, the last one never is, and each
// backend changes a bounded number of times a minute. A port without evidence ejects no backend.
func TestModelOfDecisions(t *testing.T) {
	for seed := range 200 {
		m := newModel(uint64(seed))
		changes := map[netip.AddrPort]int{}
		const minutes = 5
		for range minutes * 60 * 5 / 2 {
			before := maps.Clone(m.port.States)
			m.step()
			for _, b := range m.all {
				if m.port.States[b] != before[b] {
					changes[b]++
				}
			}
			if err := m.check(); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
		for b, n := range changes {
			if most := minutes * 20; n > most {
				t.Errorf("seed %d: %s changed %d times in %d minutes, want %d at most", seed, b, n, minutes, most)
			}
		}
	}
}

// With a packet loss of 2 % in each direction, each SYN or its answer is lost with a probability of 4 %. Within an hour
// no healthy backend is ejected, with many connections or few. A dead backend is ejected within seconds, and stays out
// except for trials.
func TestModelOfPacketLoss(t *testing.T) {
	for _, perSecond := range []float64{0.2, 1, 5, 50} {
		for seed := range uint64(5) {
			l := newLossy(seed, perSecond, -1)
			l.run(time.Hour)
			if l.ejections > 0 {
				t.Errorf("%v connections/s, seed %d: %d false ejections", perSecond, seed, l.ejections)
			}
		}
	}
	l := newLossy(1, 50, 2)
	l.run(time.Minute)
	if at := l.first.Sub(start); l.ejections == 0 || at > 4*time.Second {
		t.Errorf("the dead backend leaves %d times, first after %s", l.ejections, at)
	}
	for b := range l.port.States {
		if b != l.port.Backends[2] {
			t.Errorf("%s is %v, although it answers", b, l.port.States[b])
		}
	}
}

// The memory of a Record is bounded, whatever the number of clients.
func TestARecordIsBounded(t *testing.T) {
	var r Record
	for i := range 100_000 {
		r.Fail(client(i%60_000), start)
	}
	if got, want := r.Take(true), (Evidence{Failures: 100_000, Clients: 16, Row: 2, Observed: true}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if len(r.byClient) > maxClients {
		t.Errorf("the Record has %d clients, want %d at most", len(r.byClient), maxClients)
	}
	r.Succeed()
	if got, want := r.Take(true), (Evidence{Succeeded: true, Observed: true}); got != want || !r.Expired(start) {
		t.Errorf("after a success: %+v, want %+v", got, want)
	}
}

// A saved state is valid unless the clock jumped or the file was edited.
func TestValid(t *testing.T) {
	ejected := eject(0, failed(2), start)
	for name, s := range map[string]State{
		"far in the future":    eject(0, failed(2), start.Add(24*time.Hour)),
		"of last week":         eject(0, failed(2), start.Add(-7*24*time.Hour)),
		"an unknown phase":     {Phase: 9, Since: start, Next: start},
		"an unknown step":      {Phase: Rising, Step: 7, Since: start, Next: start},
		"without an end":       {Phase: Ejected, Since: start},
		"a window without end": {Phase: Trial, Since: start},
		"a trial with an end":  {Phase: Trial, Step: 1, Since: start, Next: start},
		"a window too many":    {Phase: Trial, Step: 16, Since: start, Next: start},
	} {
		if s.Valid(start) {
			t.Errorf("%s: valid", name)
		}
	}
	for _, s := range []State{ejected, ejected.enter(Trial, 15, start), ejected.enter(Rising, 1, start)} {
		if !s.Valid(start.Add(time.Hour)) {
			t.Errorf("%+v: not valid", s)
		}
	}
}
