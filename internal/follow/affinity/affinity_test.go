package affinity

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/kernel/bpf"
	"github.com/sluice-proxy/sluice/internal/route"
)

// fake has leases in memory, and a packet plane that remembers one client.
type fake struct {
	requests chan bpf.Request
	unread   atomic.Int32 // how often Requests fails at once

	mu     sync.Mutex
	leases map[bpf.LeaseKey]time.Duration
	left   time.Duration
	fail   error
	full   bool
	asked  []netip.Addr
}

func (f *fake) Requests(ctx context.Context, do func(bpf.Request)) error {
	if f.unread.Add(-1) >= 0 {
		return errors.New("the map cannot be read")
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case r := <-f.requests:
			do(r)
		}
	}
}

func (f *fake) Lease(l bpf.LeaseKey, _ netip.AddrPort, length time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.full {
		return bpf.ErrFull
	}
	f.leases[l] = length
	return nil
}

func (f *fake) EndLeases(list []bpf.LeaseKey) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return f.fail
	}
	for _, l := range list {
		delete(f.leases, l)
	}
	return nil
}

func (f *fake) Leases() (list []bpf.LeaseKey, _ error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for l := range f.leases {
		list = append(list, l)
	}
	return list, nil
}

func (f *fake) remembered(_ route.Key, client netip.Addr) (netip.AddrPort, time.Duration, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, client)
	return netip.MustParseAddrPort("10.1.0.7:8080"), f.left, nil
}

func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

var (
	pod    = netip.MustParseAddr("10.180.0.2")
	vip    = netip.MustParseAddr("10.96.0.1")
	source = netip.MustParseAddr("192.168.0.2")
)

// run runs a Follower with a Service whose timeout is an hour, until the test ends.
func run(t *testing.T, f *fake, test func(*Follower, *route.Service, func(client netip.Addr, c bpf.Clients) time.Duration)) {
	synctest.Test(t, func(t *testing.T) {
		f.requests, f.left = make(chan bpf.Request, 10), time.Hour
		if f.leases == nil {
			f.leases = map[bpf.LeaseKey]time.Duration{}
		}
		follower := New(Options{
			Leases: f, Remembered: f.remembered, Failed: func(err error) { t.Log(err) },
			Port:   func(*route.Service, *route.Port) bpf.Pool { return bpf.Pool{1} },
			Source: func(netip.Addr) (netip.Addr, error) { return source, nil },
		})
		ctx, cancel := context.WithCancel(t.Context())
		var done sync.WaitGroup
		done.Go(func() {
			if err := follower.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		svc := &route.Service{Name: cluster.Name{Name: "web"}, Ports: []route.Port{{
			Protocol: cluster.TCP, Family: route.IPv4, Affinity: time.Hour, Frontends: []route.Frontend{{Addr: vip, Port: 80}},
		}}}
		follower.Applied(route.Change{Touched: []route.Touch{{Name: svc.Name, New: svc}}})
		synctest.Wait()
		request := func(client netip.Addr, c bpf.Clients) time.Duration {
			l := bpf.LeaseKey{Port: bpf.Pool{1}, Client: client}
			f.requests <- bpf.Request{LeaseKey: l, Frontend: netip.AddrPortFrom(vip, 80), Protocol: 6, Clients: c}
			time.Sleep(time.Second)
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.leases[l]
		}
		test(follower, svc, request)
		cancel()
		done.Wait()
	})
}

// Requests are read again after an error.
func TestRequestsAreReadAgain(t *testing.T) {
	f := &fake{}
	f.unread.Store(3)
	run(t, f, func(_ *Follower, _ *route.Service, request func(netip.Addr, bpf.Clients) time.Duration) {
		time.Sleep(time.Minute)
		if request(pod, bpf.OfPods) == 0 {
			t.Error("the client has no lease")
		}
	})
}

func TestLeasesAreAPartOfTheTimeout(t *testing.T) {
	f := &fake{}
	run(t, f, func(_ *Follower, _ *route.Service, request func(netip.Addr, bpf.Clients) time.Duration) {
		for left, want := range map[time.Duration]time.Duration{
			time.Hour:                          time.Minute, // the longest
			time.Hour - 20*time.Second:         40 * time.Second,
			time.Hour - 61*time.Second:         0, // the packet plane has to see the client again
			0:                                  0, // it does not remember the client
			time.Hour - 59900*time.Millisecond: 100 * time.Millisecond,
		} {
			f.set(func() { f.left = left; clear(f.leases) })
			if got := request(pod, bpf.OfPods); got != want {
				t.Errorf("with %s left the lease is for %s, want %s", left, got, want)
			}
		}
	})
}

// Requests of the node name the frontend, and the packet plane knows its source address.
func TestTheNodeHasTheSourceOfItsRoute(t *testing.T) {
	f := &fake{}
	run(t, f, func(_ *Follower, _ *route.Service, request func(netip.Addr, bpf.Clients) time.Duration) {
		if got := request(vip, bpf.OfNode); got == 0 || !slices.Contains(f.asked, source) {
			t.Errorf("a lease of %s, after questions for %v", got, f.asked)
		}
	})
}

// A change of a Service ends its leases, those of an earlier run end at the start, and those that are over are removed.
func TestLeasesEnd(t *testing.T) {
	f := &fake{leases: map[bpf.LeaseKey]time.Duration{{Port: bpf.Pool{9}}: time.Hour}}
	run(t, f, func(follower *Follower, svc *route.Service, request func(netip.Addr, bpf.Clients) time.Duration) {
		none := func(when string) {
			t.Helper()
			if list, _ := f.Leases(); len(list) > 0 {
				t.Errorf("%s there are the leases %v", when, list)
			}
		}
		none("after a start")
		if request(pod, bpf.OfPods) == 0 {
			t.Error("no lease")
		}
		other := *svc
		follower.Applied(route.Change{Touched: []route.Touch{{Name: svc.Name, Old: svc, New: &other}}})
		time.Sleep(time.Second)
		none("after a change")
		if request(pod, bpf.OfPods) == 0 {
			t.Error("no lease after a change")
		}
		time.Sleep(3 * time.Minute)
		none("three minutes later")
		request(pod, bpf.OfPods)
		f.set(func() { f.fail = errors.New("injected") })
		follower.Applied(route.Change{Touched: []route.Touch{{Name: svc.Name, Old: &other}}})
		time.Sleep(time.Second)
		f.set(func() { f.fail = nil })
		time.Sleep(2 * time.Minute)
		none("after a failure")
		if got := request(pod, bpf.OfPods); got != 0 {
			t.Errorf("a lease of %s for a Service that is gone", got)
		}
		follower.Applied(route.Change{Touched: []route.Touch{{Name: svc.Name, New: svc}}})
		f.set(func() { f.full = true })
		if got := request(pod, bpf.OfPods); got != 0 {
			t.Errorf("a lease of %s without room", got)
		}
	})
}
