package relay

import (
	"errors"
	"net/netip"
	"testing"
	"time"
)

// Many Balancers do not exhaust memory either. Each remembers some clients, no matter how many others remember.
func TestAffinityIsBoundedOverBalancers(t *testing.T) {
	e, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	e.remembered.limit = 3 * keptAffinity
	var list []*Balancer
	for range 4 {
		b, _ := seeded(&Target{Affinity: time.Hour, Pools: [][]Backend{equal(3)}})
		b.subscribe(e)
		for i := range 10 * keptAffinity {
			_, _ = b.pick(client(i), 0, nil)
		}
		list = append(list, b)
	}
	for i, want := range []int{3 * keptAffinity, keptAffinity, keptAffinity, keptAffinity} {
		if n := len(list[i].affinity.clients); n != want {
			t.Errorf("Balancer %d remembers %d clients, want %d", i, n, want)
		}
	}
	for _, b := range list {
		b.Forget()
	}
	if n := e.remembered.open.Load(); n != 0 {
		t.Errorf("%d clients are counted after all were forgotten", n)
	}
	if err := e.Discard(); err != nil {
		t.Error(err)
	}
}

// Connections leave file descriptors to listening sockets, flows, pipes and the rest of the program.
func TestConnectionsLeaveFileDescriptors(t *testing.T) {
	for _, c := range []struct{ files, others, want int }{
		{65536, 8192, 24576},
		{65536, 8192 + 32768, 9728},
		{8192, 1024, 2816},
		{1024, 128, 352},
		{1024, 128 + 512, 96},
		{64, 8, 8},
		{64, 8 + 32, 4},
	} {
		if got := maxConnections(c.files, c.others); got != c.want {
			t.Errorf("%d file descriptors, %d of others: %d connections, want %d", c.files, c.others, got, c.want)
		}
	}
}

// The limit of connections follows the number of listening sockets, unless the options have one.
func TestListenersLowerTheLimitOfConnections(t *testing.T) {
	for fixed, lower := range map[int]int64{0: 1, 7: 0} {
		e, err := New(Options{MaxConnections: fixed, MaxFlows: fileLimit() / 2})
		if err != nil {
			t.Fatal(err)
		}
		alone := e.Stats().MaxConnections
		var open []*Listener
		for range 2 {
			l, err := e.Listen(Spec{
				Protocol: TCP, Addr: netip.MustParseAddrPort("127.0.0.1:0"), Balancer: NewBalancer(&Target{}),
			})
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, l)
		}
		if got := e.Stats().MaxConnections; got != alone-lower {
			t.Errorf("limit %d: with two Listeners %d connections, want %d", fixed, got, alone-lower)
		}
		open[0].Close()
		open[1].Close()
		if got := e.Stats().MaxConnections; got != alone {
			t.Errorf("limit %d: after both were closed %d connections, want %d", fixed, got, alone)
		}
		if err := e.Discard(); err != nil {
			t.Error(err)
		}
	}
}

// One that opens very many Listeners gets an error in time, and the others keep file descriptors for connections.
func TestListenersAreBounded(t *testing.T) {
	e, err := New(Options{MaxListeners: 2})
	if err != nil {
		t.Fatal(err)
	}
	s := Spec{Protocol: TCP, Addr: netip.MustParseAddrPort("127.0.0.1:0"), Balancer: NewBalancer(&Target{})}
	var open []*Listener
	for range 2 {
		l, err := e.Listen(s)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, l)
	}
	if _, err := e.Listen(s); !errors.Is(err, errListeners) {
		t.Errorf("the third: %v", err)
	}
	open[0].Close()
	if _, err := e.Listen(s); err != nil {
		t.Errorf("after one was closed: %v", err)
	}
	if err := e.Discard(); err != nil {
		t.Error(err)
	}
}
