//go:build linux

package main

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/bench/filled"
	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

// A probed Service moves to its other pod, and again only after a connection has
// reached it there.
func TestMovesOfAChurn(t *testing.T) {
	l := lab.New(t, lab.Options{})
	n := &node{server: &server{Server: &filled.Server{Services: 100}, probed: spreadOver(100)}, podOf: map[int]int{}}
	for i, a := range podAddrs() {
		n.pods[i] = l.Pod(l.NodeA, a.String())
	}
	c := &churner{node: n, pending: map[int]move{}}
	depart := func(want int) {
		t.Helper()
		to, ok := c.beginMove(5)
		if !ok || to != podAddrs()[want] {
			t.Errorf("it moves to %v (%v), want %v", to, ok, podAddrs()[want])
		}
	}
	depart(1)
	if to, ok := c.beginMove(5); ok {
		t.Errorf("during a move it was moved to %v", to)
	}
	if got := slices.Collect(maps.Keys(c.moves())); !slices.Equal(got, []int{5}) {
		t.Errorf("pending moves: %v", got)
	}
	c.endMove(5, time.Second)
	depart(0)
	if !slices.Equal(c.seen, []time.Duration{time.Second}) {
		t.Errorf("completed moves: %v", c.seen)
	}
	began := time.Now()
	c.settle(50 * time.Millisecond)
	if took := time.Since(began); took < 50*time.Millisecond || took > 5*time.Second {
		t.Errorf("settle took %v", took)
	}
}

// Real connections detect when a Service is on its other pod. Rules of the test
// replace those of a proxy.
func TestObserve(t *testing.T) {
	l := lab.New(t, lab.Options{Timeout: 50 * time.Millisecond})
	n := &node{server: &server{Server: &filled.Server{Services: 100}, probed: spreadOver(100)}, podOf: map[int]int{}, host: l.NodeA, client: l.Pod(l.NodeA, clientAddr)}
	for i, a := range podAddrs() {
		n.pods[i] = l.Pod(l.NodeA, a.String())
		n.pods[i].Serve(lab.TCP, filled.PodPort)
	}
	point := func(pod netip.Addr) {
		l.NodeA.Nft(`table ip test { chain pre { type nat hook prerouting priority -100; }; }
			flush chain ip test pre
			add rule ip test pre ip daddr ` + filled.ClusterIP(5).String() + ` tcp dport 80 counter dnat to ` + pod.String() + `:8080`)
	}
	point(podAddrs()[0])
	if got, err := n.connectOnce(5); err != nil || got != podAddrs()[0] {
		t.Fatalf("got %v, %v", got, err)
	}
	c := &churner{node: n, pending: map[int]move{}}
	if _, ok := c.beginMove(5); !ok {
		t.Fatal("the move did not begin")
	}
	began := time.Now()
	ctx, stop := context.WithCancel(t.Context())
	var observing sync.WaitGroup
	observing.Go(func() { c.observe(ctx) })
	awaitConnections(t, n, 5) // one at a time, so at least three have been answered by the old pod
	if len(c.moves()) != 1 {
		t.Error("a connection followed the move before it happened")
	}
	least := time.Since(began)
	point(podAddrs()[1])
	c.settle(5 * time.Second)
	stop()
	observing.Wait()
	if len(c.seen) != 1 || c.seen[0] < least || c.seen[0] > least+4*time.Second {
		t.Errorf("the move took %v, want a little more than %v", c.seen, least)
	}
}

// awaitConnections waits until the counter in the rules of TestObserve has counted so many
// connections.
func awaitConnections(t *testing.T, n *node, want int) {
	t.Helper()
	harness.Eventually(t, 20*time.Second, func() error {
		_, rest, _ := strings.Cut(n.host.MustRun("nft", "list", "table", "ip", "test"), "counter packets ")
		text, _, _ := strings.Cut(rest, " ")
		got, err := strconv.Atoi(text)
		if err == nil && got < want {
			err = fmt.Errorf("%d connections, want %d", got, want)
		}
		return err
	})
}
