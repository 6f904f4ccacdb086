package relay

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// With package net alone, no refusal is reported. Refusals of a backend, and for lack of a backend, are counted.
func TestUDPUnreportedPlain(t *testing.T) {
	ns := kerneltest.Namespace(t)
	closed, dead := echoUDP(t, ns, "dead", "127.0.0.1:0")
	_ = closed.Close()
	for what, target := range map[string]*Target{"refused": pools(dead), "no backend": pools()} {
		r := portableUDP(t, ns, Options{}, Spec{Addr: loopback, Balancer: NewBalancer(target)})
		_, _ = dialUDP(t, ns, r.at).Write([]byte("x"))
		eventually(t, what+": unreported", 1, func() int64 { return r.Stats().Unreported })
	}
}

// Without the capability, a refusal is counted.
func TestUDPUnreported(t *testing.T) {
	ns := kerneltest.Namespace(t)
	closed, dead := echoUDP(t, ns, "dead", "127.0.0.1:0")
	_ = closed.Close()
	e, err := New(Options{NetNS: ns})
	if err != nil {
		t.Fatal(err)
	}
	l, err := e.Listen(Spec{Protocol: UDP, Addr: loopback, Balancer: NewBalancer(pools(dead))})
	if err != nil {
		t.Fatal(err)
	}
	p := e.system.(*poller)
	p.hosts.close() // as if the program was not allowed to open it
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- e.Run(ctx) }()
	c := dialUDP(t, ns, l.Addr())
	_, _ = c.Write([]byte("x"))
	eventually(t, "unreported", 1, func() int64 { return e.Stats().Unreported })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// All clients together get a burst of errors, and a number each second.
func TestBudgetOfAll(t *testing.T) {
	b, now, sent := newBudgets(), time.Now(), 0
	for i := range 2000 {
		if i >= 1000 {
			now = now.Add(time.Millisecond)
		}
		if b.take(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), now) {
			sent++
		}
	}
	if most := refusalsAtOnce + refusalsPerSecond; sent < most/2 || sent > most {
		t.Errorf("%d were sent in a second, want up to %d", sent, most)
	}
}

// One client, or one network of IPv6, gets few errors, and other clients still get theirs.
func TestBudgets(t *testing.T) {
	b, now, sent := newBudgets(), time.Now(), 0
	for i := range 100 {
		if b.take(netip.AddrFrom16([16]byte{0xfd, 15: byte(i)}), now) {
			sent++
		}
	}
	for range 1000 {
		now = now.Add(time.Millisecond)
		if b.take(netip.MustParseAddr("fd00::1"), now) {
			sent++
		}
	}
	if want := clientRefusalsAtOnce + clientRefusalsPerSecond; sent < want-1 || sent > want+1 {
		t.Errorf("%d were sent, want %d", sent, want)
	}
	if !b.take(netip.MustParseAddr("10.0.0.1"), now) {
		t.Error("another client gets no error")
	}
}
