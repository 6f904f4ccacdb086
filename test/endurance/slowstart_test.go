//go:build linux

package endurance

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// A new endpoint with slow start gets a twentieth of the connections in place of a third, and a third when its time
// is over: of all kinds of sockets, of the node and of a pod. Each of these 73 checks fails by chance with a
// probability below 1e-10 (lab.Bounds).
func TestSlowStartGovernsSockets(t *testing.T) {
	s := newSockets(t, "ebpf")
	const n, tenth, whole = 300, 26.0 / 256, 1
	all := s.openers(s.lab.NodeA, s.client)
	check := func(when string, part float64) {
		t.Helper()
		for _, o := range all {
			_, chance := o.checkSpread(n)
			if want := shareOfNew(part); chance[2] < want-0.001 || chance[2] > want+0.001 {
				t.Errorf("%s, %s: explain says %.3f, want %.3f for the last", when, o, chance, want)
			}
		}
	}
	s.addSlowly(time.Hour)
	check("at first", tenth)

	const window = 5 * time.Second
	before, after := s.addSlowly(window)
	count := all[0].spread(2 * n)
	part := max(tenth, time.Since(before).Seconds()/window.Seconds()) // at most, at the last connection
	if _, most := lab.Bounds(2*n, shareOfNew(part)); count[2] > most {
		t.Errorf("the new pod gets %d of %d connections within %.2f of its time, want %d at most", count[2], 2*n, part, most)
	}
	time.Sleep(time.Until(after.Add(window)))
	check("later", whole)
}

// addSlowly removes the last pod from the Service, and adds it again with slow start. Its time begins between the two
// that it returns.
func (s *sockets) addSlowly(window time.Duration) (before, after time.Time) {
	s.Helper()
	slow := object{annotationSlowStart: window.String()}
	s.writeWeb(slow, 0, 1)
	s.waitBackends(2)
	before = time.Now()
	s.writeWeb(slow, 0, 1, 2)
	s.waitBackends(3)
	return before, time.Now()
}

// shareOfNew returns the probability that one of three backends is chosen that keeps a part of its connections, and
// passes the others on, but not the one of the fourth draw (draw of sock.c).
func shareOfNew(part float64) float64 {
	const each = 1.0 / 3
	passed := each * (1 - min(part, 1))
	first := 1 + passed + passed*passed + passed*passed*passed
	return each*min(part, 1)*first + passed*passed*passed*passed
}

// waitBackends waits until the daemon serves so many backends of the Service, at each of its four ports.
func (s *sockets) waitBackends(n int) {
	s.Helper()
	s.eventually(func() error {
		status, err := s.status()
		if err == nil && (status.Counts.Backends != 4*n || status.Pending > 0) {
			err = fmt.Errorf("%d backends, %d pending, want %d", status.Counts.Backends, status.Pending, 4*n)
		}
		return err
	})
}
