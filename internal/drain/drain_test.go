package drain

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
)

// table is a conntrack table with quick access to each entry.
type table struct {
	mu      sync.Mutex
	entries map[uint32]conntrack.Entry
	last    uint32
	listed  int
	err     error
}

// begin adds an entry and returns its ID.
func (t *table) begin(e conntrack.Entry) uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	e.ID = t.last
	if t.entries == nil {
		t.entries = map[uint32]conntrack.Entry{}
	}
	t.entries[e.ID] = e
	return e.ID
}

// change replaces an entry.
func (t *table) change(id uint32, change func(*conntrack.Entry)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[id]
	change(&e)
	t.entries[id] = e
}

// close ends a TCP connection; its entry stays for a while.
func (t *table) close(id uint32) {
	t.change(id, func(e *conntrack.Entry) { e.State = closing })
}

func (t *table) Each(_ context.Context, f conntrack.Filter, fn func(conntrack.Entry) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.listed++
	for id := range t.last {
		if e, exists := t.entries[id+1]; exists && f.Match(e) {
			if err := errors.Join(fn(e), fn(e)); err != nil { // the kernel may list an entry twice
				return err
			}
		}
	}
	return t.err
}

func (t *table) Get(_ context.Context, e conntrack.Entry) (conntrack.Entry, bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, exists := t.entries[e.ID]
	return now, exists, t.err
}

// The states of TCP connections.
const (
	open    conntrack.State = 3
	closing conntrack.State = 7
)

func client(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i >> 16)}), uint16(i))
}

var (
	pod = Pod{
		cluster.Name{Namespace: "default", Name: "web-0"},
		[]netip.Addr{netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("fd01::1")},
	}
	node    = netip.MustParseAddr("192.168.0.4")
	service = netip.MustParseAddrPort("10.96.0.1:80")
	backend = netip.MustParseAddrPort("10.1.0.1:8080")
)

func tcp(i int) conntrack.Entry {
	return conntrack.Entry{
		Protocol: conntrack.TCP, State: open, OrigSrc: client(i), OrigDst: service, ReplySrc: backend, ReplyDst: client(i),
		Status: conntrack.Answered | conntrack.DstNAT,
	}
}

func udp(i int, remaining time.Duration) conntrack.Entry {
	e := tcp(i)
	e.Protocol, e.State, e.Remaining = conntrack.UDP, 0, remaining
	return e
}

func waiter(t *table) Waiter {
	return Waiter{
		Table:    t,
		Timeouts: func() (Timeouts, error) { return Timeouts{30 * time.Second, 2 * time.Minute}, nil },
		Local:    func(context.Context) ([]netip.Addr, error) { return []netip.Addr{node}, nil },
	}
}

// ended is how a wait ended.
type ended struct {
	Result
	err error
}

// begin begins a wait and returns it.
func begin(t *testing.T, w *Waits, limit time.Duration) <-chan ended {
	result := make(chan ended, 1)
	go func() {
		r, err := w.Wait(t.Context(), pod, limit)
		result <- ended{r, err}
	}()
	return result
}

func never(Outcome, time.Duration) {}

// A pod is drained when its last connection has ended, and no new one came for the quiet time. Connections to others,
// and those that never began, do not count.
func TestDrained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ct := &table{}
		other, opening := tcp(1), tcp(2)
		other.ReplySrc = netip.MustParseAddrPort("10.1.0.2:8080")
		opening.State, opening.Status = conntrack.SynSent, conntrack.DstNAT
		ct.begin(other)
		ct.begin(opening)
		six := tcp(3)
		six.OrigSrc, six.OrigDst = netip.MustParseAddrPort("[fd00::1]:9"), netip.MustParseAddrPort("[fd01::1]:80")
		six.ReplySrc, six.ReplyDst = six.OrigDst, six.OrigSrc
		first, second := ct.begin(tcp(4)), ct.begin(six)
		result := begin(t, NewWaits(waiter(ct), never), time.Minute)
		time.Sleep(5 * time.Second)
		ct.close(first)
		time.Sleep(5 * time.Second)
		ct.close(second)
		synctest.Wait()
		got := <-result
		if got.err != nil || !got.Drained || got.Live != 0 || len(got.Flows) != 0 ||
			got.Took < 10*time.Second || got.Took > 10*time.Second+2*lookAtWitness {
			t.Errorf("got %+v, want drained after 10 s", got)
		}
	})
}

// A connection that begins and ends meanwhile makes the wait longer by the quiet time, except a probe of this node.
func TestQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ct := &table{}
		ct.begin(tcp(1))
		ct.close(1)
		result := begin(t, NewWaits(waiter(ct), never), time.Minute)
		time.Sleep(Quiet - time.Millisecond)
		ct.close(ct.begin(tcp(2)))
		time.Sleep(Quiet / 2)
		probe := tcp(3)
		probe.OrigSrc, probe.OrigDst, probe.Status = netip.AddrPortFrom(node, 7), backend, conntrack.Answered
		ct.close(ct.begin(probe)) // of the kubelet, which does not count
		if got := <-result; got.err != nil || !got.Drained || got.Took < 2*Quiet || got.Took > 2*Quiet+time.Second {
			t.Errorf("got %+v, want drained after twice the quiet time", got)
		}
	})
}

// When time is up, the result has what is left. Who waits may also leave.
func TestTimeUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ct, began := &table{}, time.Now()
		left := tcp(2)
		left.Sent, left.Received, left.Accounted = 3, 4, true
		ct.begin(left)
		ct.begin(udp(1, 25*time.Second))
		outcomes := map[Outcome]time.Duration{}
		w := NewWaits(waiter(ct), func(o Outcome, took time.Duration) { outcomes[o] = took })
		got := <-begin(t, w, 3*time.Second)
		want := []Flow{
			{conntrack.UDP, client(1), service, backend, began, 5 * time.Second, 0, false},
			{conntrack.TCP, client(2), service, backend, began, 0, 7, true},
		}
		if got.err != nil || got.Drained || got.Live != 2 || !slices.Equal(got.Flows, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
		if outcomes[TimeUp] != 3*time.Second || len(outcomes) != 1 {
			t.Errorf("outcomes %v, want time_up after 3 s", outcomes)
		}
		ctx, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		if r, err := w.Wait(ctx, pod, time.Minute); err != nil || r.Drained || r.Took != time.Second {
			t.Errorf("after the client has left: %+v, %v", r, err)
		}
	})
}

// A UDP flow has ended once it is silent, by the timeout that conntrack has for it.
func TestUDP(t *testing.T) {
	stream := udp(1, 0)
	stream.Status |= conntrack.Assured
	for _, c := range []struct {
		e         conntrack.Entry
		remaining time.Duration
		live      bool
	}{
		{udp(1, 0), 30 * time.Second, true},
		{udp(1, 0), 21 * time.Second, true},
		{udp(1, 0), 20 * time.Second, false},
		{stream, 120 * time.Second, true},
		{stream, 111 * time.Second, true},
		{stream, 30 * time.Second, false},
		{udp(1, 0), 90 * time.Second, true}, // a longer timeout was set before
	} {
		c.e.Remaining = c.remaining
		f := flows{udp: Timeouts{30 * time.Second, 2 * time.Minute}}
		if got := f.isLive(c.e); got != c.live {
			t.Errorf("%s with %s left: live %t, want %t", c.e, c.remaining, got, c.live)
		}
	}
}

// A hundred thousand connections take about as many listings as their number has binary digits, whatever the order in
// which they end, and the wait ends soon after the last.
func TestManyConnections(t *testing.T) {
	const n = 100_000
	for name, order := range map[string]func(i int) uint32{
		"the oldest first": func(i int) uint32 { return uint32(i + 1) },
		"the newest first": func(i int) uint32 { return uint32(n - i) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ct := &table{}
				for i := range n {
					ct.begin(tcp(i))
				}
				result := begin(t, NewWaits(waiter(ct), never), Longest)
				synctest.Wait()
				for i := range n {
					ct.close(order(i))
					if i%1000 == 0 {
						time.Sleep(time.Second)
					}
				}
				last := time.Now()
				got := <-result
				if late := time.Since(last); got.err != nil || !got.Drained || late > 4*lookAtWitness {
					t.Errorf("drained %t, %v, %s after the last connection", got.Drained, got.err, late)
				}
				const twoFamilies, most = 2, 60 // ln(n) is 12; 60 is far beyond what chance gives
				if ct.listed > twoFamilies*most {
					t.Errorf("%d listings", ct.listed)
				}
			})
		})
	}
}

// Errors end a wait; there are at most so many; and those that run are listed.
func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ct := &table{}
		ct.begin(tcp(1))
		w, now := NewWaits(waiter(ct), never), time.Now()
		var all []<-chan ended
		for range mostWaits {
			all = append(all, begin(t, w, time.Minute))
		}
		synctest.Wait()
		if _, err := w.Wait(t.Context(), pod, time.Second); !errors.Is(err, ErrMany) {
			t.Errorf("one more ends with %v", err)
		}
		list := w.Running()
		want := fmt.Sprint(Running{pod, now, now.Add(time.Minute), 1})
		if len(list) != mostWaits || fmt.Sprint(list[0]) != want {
			t.Errorf("%d run, %v, want %s", len(list), list[0], want)
		}
		ct.mu.Lock()
		ct.err = errors.New("no table")
		ct.mu.Unlock()
		for _, result := range all {
			if got := <-result; got.err == nil {
				t.Errorf("ended with %+v though the table cannot be read", got)
			}
		}
		if list := w.Running(); len(list) > 0 {
			t.Errorf("%v are left", list)
		}
	})
}
