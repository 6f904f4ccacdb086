package drain

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
)

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

func options(t *table) Options {
	return Options{
		Table:    t,
		Timeouts: func() (Timeouts, error) { return Timeouts{30 * time.Second, 2 * time.Minute}, nil },
		Local:    func(context.Context) ([]netip.Addr, error) { return []netip.Addr{node}, nil },
	}
}

// ended is the result of a wait.
type ended struct {
	Result
	err error
}

// begin starts a wait and returns the channel for its result.
func begin(t *testing.T, w *Waits, limit time.Duration) <-chan ended {
	result := make(chan ended, 1)
	go func() {
		r, err := w.Wait(t.Context(), pod, limit)
		result <- ended{r, err}
	}()
	return result
}

func ignore(Outcome, time.Duration) {}

// A pod is drained when its last connection has ended, and no new connection began for Quiet. Connections to other
// pods, and connections that were never answered, do not count.
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
		result := begin(t, NewWaits(options(ct), ignore), time.Minute)
		time.Sleep(5 * time.Second)
		ct.close(first)
		time.Sleep(5 * time.Second)
		ct.close(second)
		synctest.Wait()
		got := <-result
		if got.err != nil || !got.Drained || got.Live != 0 || len(got.Flows) != 0 ||
			got.Took < 10*time.Second || got.Took > 10*time.Second+2*pollPeriod {
			t.Errorf("got %+v, want drained after 10 s", got)
		}
	})
}

// A connection that begins and ends during the wait prolongs it by Quiet, except a probe of this node.
func TestQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ct := &table{}
		ct.begin(tcp(1))
		ct.close(1)
		result := begin(t, NewWaits(options(ct), ignore), time.Minute)
		time.Sleep(Quiet - time.Millisecond)
		ct.close(ct.begin(tcp(2)))
		time.Sleep(Quiet / 2)
		probe := tcp(3)
		probe.OrigSrc, probe.OrigDst, probe.Status = netip.AddrPortFrom(node, 7), backend, conntrack.Answered
		ct.close(ct.begin(probe))
		if got := <-result; got.err != nil || !got.Drained || got.Took < 2*Quiet || got.Took > 2*Quiet+time.Second {
			t.Errorf("got %+v, want drained after twice the quiet time", got)
		}
	})
}

// When time is up, the result has the remaining flows. A wait also ends when the client disconnects.
func TestTimeUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ct, began := &table{}, time.Now()
		left := tcp(2)
		left.Sent, left.Received, left.Accounted = 3, 4, true
		ct.begin(left)
		ct.begin(udp(1, 25*time.Second))
		outcomes := map[Outcome]time.Duration{}
		w := NewWaits(options(ct), func(o Outcome, took time.Duration) { outcomes[o] = took })
		got := <-begin(t, w, 3*time.Second)
		want := []Flow{
			{"udp", client(1), service, backend, began, new(5.0), nil},
			{"tcp", client(2), service, backend, began, nil, new(uint64(7))},
		}
		if got.err != nil || got.Drained || got.Live != 2 || !reflect.DeepEqual(got.Flows, want) {
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

// A TCP connection is live until both sides have closed it or one has reset it, an SCTP association until all data has
// arrived. A UDP flow has ended after udpSilence without a packet.
func TestWhichFlowsAreLive(t *testing.T) {
	const none, dormant, live = "", "dormant", "live"
	of := func(protocol uint8, s conntrack.State) conntrack.Entry {
		e := tcp(1)
		e.Protocol, e.State = protocol, s
		return e
	}
	stream := func(remaining time.Duration) conntrack.Entry {
		e := udp(1, remaining)
		e.Status |= conntrack.Assured
		return e
	}
	const synReceived, finWait, closeWait, lastAck, reset = 2, 4, 5, 6, 8
	const closed, cookieEchoed, associated, shutdownSent, shutdownReceived, shutdownAckSent = 1, 3, 4, 5, 6, 7
	for _, c := range []struct {
		e    conntrack.Entry
		want string
	}{
		{of(conntrack.TCP, conntrack.SynSent), dormant},
		{of(conntrack.TCP, synReceived), live},
		{of(conntrack.TCP, open), live},
		{of(conntrack.TCP, finWait), live},
		{of(conntrack.TCP, closeWait), live},
		{of(conntrack.TCP, lastAck), none},
		{of(conntrack.TCP, closing), none},
		{of(conntrack.TCP, reset), none},
		{of(conntrack.SCTP, closed), none},
		{of(conntrack.SCTP, conntrack.CookieWait), dormant},
		{of(conntrack.SCTP, cookieEchoed), live},
		{of(conntrack.SCTP, associated), live},
		{of(conntrack.SCTP, shutdownSent), live},
		{of(conntrack.SCTP, shutdownReceived), live},
		{of(conntrack.SCTP, shutdownAckSent), none},
		{udp(1, 30*time.Second), live},
		{udp(1, 21*time.Second), live},
		{udp(1, 20*time.Second), dormant},
		{stream(120 * time.Second), live},
		{stream(111 * time.Second), live},
		{stream(30 * time.Second), dormant},
		{udp(1, 90*time.Second), live}, // a longer timeout was set before
		{of(1, 0), none},               // a ping
	} {
		f := &flows{udp: Timeouts{30 * time.Second, 2 * time.Minute}}
		if got := map[*sample]string{&f.live: live, &f.dormant: dormant}[f.sampleOf(c.e)]; got != c.want {
			t.Errorf("%s in state %d with %s left: %q, want %q", c.e, c.e.State, c.e.Remaining, got, c.want)
		}
	}
}

// A connection that is established late, and a UDP flow with packets after a pause, hold the wait.
func TestFlowsThatBecomeLiveLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ct := &table{}
		long := ct.begin(tcp(1))
		late := tcp(2)
		late.State = conntrack.SynSent
		for _, id := range []uint32{ct.begin(late), ct.begin(udp(3, time.Second))} {
			result := begin(t, NewWaits(options(ct), ignore), time.Minute)
			time.Sleep(5 * time.Second)
			ct.change(id, func(e *conntrack.Entry) { e.State, e.Remaining = open, 30*time.Second })
			time.Sleep(time.Second)
			ct.close(long)
			time.Sleep(5 * time.Second)
			ct.change(id, func(e *conntrack.Entry) { e.State, e.Remaining = closing, 0 })
			const want = 11 * time.Second
			if got := <-result; got.err != nil || !got.Drained || got.Took < want || got.Took > want+2*pollPeriod {
				t.Errorf("got %+v, want drained after 11 s", got)
			}
			ct.change(long, func(e *conntrack.Entry) { e.State = open })
		}
	})
}

// The wait lists the connections again after events were lost.
func TestLostEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ct := &table{}
		result := begin(t, NewWaits(options(ct), ignore), time.Minute)
		time.Sleep(Quiet / 2)
		ct.mu.Lock()
		ct.lost = true
		ct.mu.Unlock()
		missed := ct.begin(tcp(1))
		time.Sleep(2 * Quiet)
		ct.close(missed)
		got := <-result
		if got.err != nil || !got.Drained || got.Took < 5*Quiet/2 || got.Took > 5*Quiet/2+2*pollPeriod {
			t.Errorf("got %+v, want drained after %s", got, 5*Quiet/2)
		}
	})
}

// Errors end a wait, at most maxWaits run at a time, and Running lists them.
func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ct := &table{}
		ct.begin(tcp(1))
		w, now := NewWaits(options(ct), ignore), time.Now()
		var all []<-chan ended
		for range maxWaits {
			all = append(all, begin(t, w, time.Minute))
		}
		synctest.Wait()
		if _, err := w.Wait(t.Context(), pod, time.Second); !errors.Is(err, ErrTooMany) {
			t.Errorf("a further wait returns %v, want %v", err, ErrTooMany)
		}
		list := w.Running()
		want := fmt.Sprint(Running{pod.String(), now, now.Add(time.Minute), 1})
		if len(list) != maxWaits || fmt.Sprint(list[0]) != want {
			t.Errorf("%d waits run, the first is %v, want %s", len(list), list[0], want)
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
			t.Errorf("%v still run", list)
		}
	})
}
