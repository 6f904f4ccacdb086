package forward

import (
	"errors"
	"net/netip"
	"testing"
	"time"
)

// Many Balancers do not exhaust memory either. Each remembers some clients, whatever others have.
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

// One that opens very many Listeners gets an error in time, and the others keep file descriptors for
// connections.
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
