package ebpf

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/linux/sockdiag"
	"github.com/sluice-proxy/sluice/internal/route"
)

// fakeLoads are the loads in a kernel.
type fakeLoads map[netip.AddrPort]uint32

func (f fakeLoads) Loads() (map[netip.AddrPort]bpf.Load, error) {
	all := map[netip.AddrPort]bpf.Load{}
	for at, n := range f {
		all[at] = bpf.Load{Counted: n}
	}
	return all, nil
}

func (f fakeLoads) SetLoads(counted map[netip.AddrPort]uint32, _ map[netip.AddrPort]bpf.Load) error {
	maps.DeleteFunc(f, func(netip.AddrPort, uint32) bool { return true })
	maps.Copy(f, counted)
	return nil
}

// least returns a Service whose backends are chosen by their load.
func least(name string, backends ...netip.AddrPort) *route.Service {
	port := route.Port{
		Protocol: cluster.TCP, Family: route.IPv4, Scheduler: "lc", Cluster: backends,
		Frontends: []route.Frontend{{Port: 80}},
	}
	return &route.Service{Name: cluster.Name{Namespace: "ns", Name: name}, Ports: []route.Port{port}}
}

// The backends of Services with least connections have loads, which are counted again and again. Without such a
// Service there are none.
func TestLoadsFollowServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := pods(3)
		open, kernel, counts, failures := sockdiag.Connections{b[0]: {1: 2}, b[1]: {1: 1, 2: 1}}, fakeLoads{b[2]: 7}, 0, 0
		var failure error
		var mu sync.Mutex // fake time does not order accesses for the race detector
		change := func(do func()) {
			mu.Lock()
			defer mu.Unlock()
			do()
		}
		l := newLoads(kernel, func(_ context.Context, isPeer func(netip.AddrPort) bool) (sockdiag.Connections, error) {
			mu.Lock()
			defer mu.Unlock()
			counts++
			if isPeer(netip.MustParseAddrPort("10.9.9.9:80")) {
				t.Error("counts connections to other peers")
			}
			return maps.Clone(open), failure
		}, func(error) { failures++ })
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- l.Run(ctx) }()
		want := func(when string, loads fakeLoads) {
			t.Helper()
			synctest.Wait()
			if !maps.Equal(kernel, loads) {
				t.Errorf("%s: the loads are %v, want %v", when, kernel, loads)
			}
		}
		want("without Services, after a restart", fakeLoads{})
		web, other := least("web", b[0], b[1]), least("other", b[1], b[2])
		l.Applied(route.Change{
			Table:   &route.Table{Services: map[cluster.Name]*route.Service{web.Name: web}},
			Touched: []route.Touch{{Name: web.Name, New: web}},
		})
		want("with a Service", fakeLoads{b[0]: 2, b[1]: 2})
		change(func() { open[b[0]] = map[uint64]int{1: 5} })
		time.Sleep(countPeriod)
		want("later", fakeLoads{b[0]: 5, b[1]: 2})
		change(func() { failure = errors.New("no memory") })
		time.Sleep(3 * countPeriod) // the failure is reported once
		want("without a count", fakeLoads{b[0]: 5, b[1]: 2})
		change(func() { failure = nil })
		l.Applied(route.Change{Touched: []route.Touch{{Name: other.Name, New: other}}})
		want("with two", fakeLoads{b[0]: 5, b[1]: 2, b[2]: 0})
		l.Applied(route.Change{Touched: []route.Touch{{Name: web.Name, Old: web}}})
		want("with the other", fakeLoads{b[1]: 2, b[2]: 0})
		l.Applied(route.Change{Touched: []route.Touch{{Name: other.Name, Old: other}}})
		want("without", fakeLoads{})
		before := counts
		time.Sleep(time.Hour)
		if counts != before || failures != 1 {
			t.Errorf("%d counts without a Service, %d failures, want none and one", counts-before, failures)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A pod weighs no more than all other clients together, beyond some connections; the node has its whole weight.
func TestWeigh(t *testing.T) {
	for _, c := range []struct {
		open map[uint64]int
		want uint32
	}{
		{nil, 0},
		{map[uint64]int{1: 10}, 10},
		{map[uint64]int{1: 5000}, wholeWeight},
		{map[uint64]int{1: 5000, 2: 1, 3: 2}, wholeWeight + 3},
		{map[uint64]int{1: 5000, 2: 100, 3: 300}, 800},
		{map[uint64]int{sockdiag.OfNode: 5000, 2: 100}, 5100},
		{map[uint64]int{1: 100, 2: 100}, 200},
	} {
		if got := weigh(c.open); got != c.want {
			t.Errorf("%v weighs %d, want %d", c.open, got, c.want)
		}
	}
}
