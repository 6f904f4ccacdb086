//go:build linux

package main

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// TestMovementsOfAChurn: a probed Service goes to its other pod, and is left
// alone until a connection has found it there.
func TestMovementsOfAChurn(t *testing.T) {
	l := lab.New(t, lab.Options{})
	n := &node{server: &server{services: 100, probed: spreadOver(100)}, behind: map[int]int{}}
	for i, a := range podAddrs() {
		n.pods[i] = l.Pod(l.NodeA, a.String())
	}
	c := &churner{node: n, moving: map[int]movement{}}
	depart := func(want int) {
		t.Helper()
		to, ok := c.depart(5)
		if !ok || to != podAddrs()[want] {
			t.Errorf("it goes to %v (%v), want %v", to, ok, podAddrs()[want])
		}
	}
	depart(1)
	if to, ok := c.depart(5); ok {
		t.Errorf("on its way it was sent to %v", to)
	}
	if got := slices.Collect(maps.Keys(c.underWay())); !slices.Equal(got, []int{5}) {
		t.Errorf("on their way are %v", got)
	}
	c.arrive(5, time.Second)
	depart(0)
	if !slices.Equal(c.seen, []time.Duration{time.Second}) {
		t.Errorf("seen were %v", c.seen)
	}
	began := time.Now()
	c.settled(50 * time.Millisecond)
	if took := time.Since(began); took < 50*time.Millisecond || took > 5*time.Second {
		t.Errorf("what does not arrive was waited for for %v", took)
	}
}

// TestLookingAtWhatMoves finds with real connections when a Service is on its
// other pod. The rules are made by hand: what a proxy would do.
func TestLookingAtWhatMoves(t *testing.T) {
	l := lab.New(t, lab.Options{Timeout: 50 * time.Millisecond})
	n := &node{server: &server{services: 100, probed: spreadOver(100)}, behind: map[int]int{}, client: l.Pod(l.NodeA, clientAddr)}
	for i, a := range podAddrs() {
		n.pods[i] = l.Pod(l.NodeA, a.String())
		n.pods[i].Serve(lab.TCP, podPort)
	}
	point := func(pod netip.Addr) {
		l.NodeA.Nft(`table ip test { chain pre { type nat hook prerouting priority -100; }; }
			flush chain ip test pre
			add rule ip test pre ip daddr ` + clusterIP(5).String() + ` tcp dport 80 dnat to ` + pod.String() + `:8080`)
	}
	point(podAddrs()[0])
	if got, err := n.reaches(5); err != nil || got != podAddrs()[0] {
		t.Fatalf("got %v, %v", got, err)
	}
	c := &churner{node: n, moving: map[int]movement{}}
	if _, ok := c.depart(5); !ok {
		t.Fatal("it did not depart")
	}
	ctx, stop := context.WithCancel(t.Context())
	var looking sync.WaitGroup
	looking.Go(func() { c.look(ctx) })
	time.Sleep(100 * time.Millisecond)
	if len(c.underWay()) != 1 {
		t.Error("it arrived before it was there")
	}
	point(podAddrs()[1])
	c.settled(5 * time.Second)
	stop()
	looking.Wait()
	if len(c.seen) != 1 || c.seen[0] < 100*time.Millisecond || c.seen[0] > 4*time.Second {
		t.Errorf("it arrived after %v, want a little more than 100ms", c.seen)
	}
}
