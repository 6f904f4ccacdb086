package iptables

import (
	"context"
	"net/netip"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

// slowCounters are counters by their chain, which take a while to read.
type slowCounters struct {
	takes    time.Duration
	mu       sync.Mutex
	chains   map[string]uint64
	readings int
}

func (s *slowCounters) Translated(_ context.Context, f iptables.Family) (map[string]uint64, error) {
	if f != iptables.Family(route.IPv4) {
		return nil, nil
	}
	time.Sleep(s.takes)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readings++
	return s.chains, nil
}

// count replaces the counters.
func (s *slowCounters) count(chains map[string]uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.chains = chains
}

// read returns how often the counters were read.
func (s *slowCounters) read() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.readings
}

// Rules count for the backend to which their chain leads, from the first reading on. Counters are read in the
// background while somebody asks, with pauses that keep it below 4 % of a processor.
func TestCountersAreReadWhileSomebodyAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		id := route.PortID{
			Service: cluster.Name{Namespace: "ns", Name: "svc-2"}, Name: "tcp", Protocol: cluster.TCP, Family: route.IPv4,
		}
		chain := idOf(id).endpoint("10.180.1.2:8080")
		kernel := &slowCounters{takes: time.Second, chains: map[string]uint64{chain: 100, "KUBE-SEP-OTHER": 7}}
		c := newCounts(kernel, route.Families(), func(err error) { t.Error(err) })
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.Run(ctx) }()
		compiler := route.NewCompiler(route.Options{NodeName: "a", Families: route.Families()})
		compiler.Compile(planetest.EveryShape().Take())
		ask := func() plane.Counted {
			counted, err := c.Traffic(ctx, compiler.Snapshot())
			if err != nil {
				t.Error(err)
			}
			return counted
		}
		time.Sleep(time.Hour)
		if n := kernel.read(); n > 0 {
			t.Errorf("%d readings before somebody asked", n)
		}
		if got := ask(); got != nil {
			t.Errorf("before the first reading: got %v, want nil", got)
		}
		time.Sleep(2 * time.Second)
		if got := ask(); got == nil || len(got) > 0 {
			t.Errorf("at the first reading: got %v, want no connections", got)
		}
		kernel.count(map[string]uint64{chain: 103, "KUBE-SEP-OTHER": 9})
		for range 600 {
			ask()
			time.Sleep(time.Second / 2)
		}
		want := plane.Counted{id: {
			Traffic:  plane.Traffic{plane.Connections: 3},
			Backends: map[netip.AddrPort]plane.BackendTraffic{netip.MustParseAddrPort("10.180.1.2:8080"): {Connections: 3}},
		}}
		if got := ask(); !reflect.DeepEqual(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		if n := kernel.read(); n < 8 || n > 11 {
			t.Errorf("%d readings of a second in five minutes, want one each half a minute", n)
		}
		time.Sleep(2 * time.Minute)
		before := kernel.read()
		time.Sleep(time.Hour)
		if n := kernel.read() - before; n > 0 {
			t.Errorf("%d readings when nobody asks", n)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
