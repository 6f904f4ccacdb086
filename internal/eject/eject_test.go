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

// failed is the evidence of failures of so many clients.
func failed(clients int) Evidence {
	return Evidence{Failures: clients, Clients: clients, Row: 1, Known: true}
}

// A backend leaves when connections of two clients failed, or five of one, if it is known that none succeeded.
func TestWhatEjects(t *testing.T) {
	for _, c := range []struct {
		name  string
		e     Evidence
		leave bool
	}{
		{"two clients", failed(2), true},
		{"one client", failed(1), false},
		{"four of one client", Evidence{Failures: 4, Clients: 1, Row: 4, Known: true}, false},
		{"five of one client", Evidence{Failures: 5, Clients: 1, Row: 5, Known: true}, true},
		{"a success unknown", Evidence{Failures: 9, Clients: 9, Row: 1}, false},
		{"a success since", Evidence{Failures: 9, Clients: 9, Row: 1, Known: true, Succeeded: true}, false},
	} {
		p := newPort(3)
		want := map[netip.AddrPort]Standing{}
		if c.leave {
			want[p.Backends[1]] = Standing{
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
		p.Standings = p.Decide(map[netip.AddrPort]Evidence{b: e}, now)
		s, has := p.Standings[b]
		return fmt.Sprintf("%t %d %s", has, s.Share().Part, s.Next.Sub(now))
	}
	none, idle := Evidence{Known: true}, Evidence{Known: true, Idle: true}
	success := Evidence{Known: true, Succeeded: true}
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

// However the evidence and the backends change, no more are out than allowed, never the last, and each backend changes
// a bounded number of times a minute. A port without evidence ejects none.
func TestModelOfDecisions(t *testing.T) {
	for seed := range 200 {
		m := newModel(uint64(seed))
		changes := map[netip.AddrPort]int{}
		const minutes = 5
		for range minutes * 60 * 5 / 2 {
			before := maps.Clone(m.port.Standings)
			m.step()
			for _, b := range m.all {
				if m.port.Standings[b] != before[b] {
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

// In an hour, each connection to healthy backends loses its first SYN with a probability of 4 % (2 % in each direction)
// and each one sent again as well. None is ejected, whether there are many clients or few; a dead backend among them
// is, within seconds, and stays out except for trials.
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
	for b := range l.port.Standings {
		if b != l.port.Backends[2] {
			t.Errorf("%s is %v, although it answers", b, l.port.Standings[b])
		}
	}
}

// A Record is bounded, whatever the clients.
func TestARecordIsBounded(t *testing.T) {
	var r Record
	for i := range 100_000 {
		r.Fail(client(i%60_000), start)
	}
	if got, want := r.Take(true), (Evidence{Failures: 100_000, Clients: 16, Row: 2, Known: true}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if len(r.byClient) > mostClients {
		t.Errorf("it remembers %d clients", len(r.byClient))
	}
	r.Succeed()
	if got, want := r.Take(true), (Evidence{Succeeded: true, Known: true}); got != want || !r.Expired(start) {
		t.Errorf("after a success: %+v, want %+v", got, want)
	}
}

// What was saved is used unless a clock jumped or a file was edited.
func TestWhatIsValid(t *testing.T) {
	ejected := eject(0, failed(2), start)
	for name, s := range map[string]Standing{
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
	for _, s := range []Standing{ejected, ejected.enter(Trial, 15, start), ejected.enter(Rising, 1, start)} {
		if !s.Valid(start.Add(time.Hour)) {
			t.Errorf("%+v: not valid", s)
		}
	}
}
