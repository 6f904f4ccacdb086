package bpf

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/lab"
	"github.com/sluice-proxy/sluice/test/seeds"
)

// A processor repeats the decision for a client and a Service until the tables change. While they are written it
// decides each time.
func TestRepeatedDecisions(t *testing.T) {
	n := newNode(t)
	serve(t, n.opt.NetNS, "127.0.0.1:8080")
	list := service(vip, 6, OfNode, "127.0.0.1:8080")
	n.write(list...)
	frontend := list[slices.IndexFunc(list, func(e Entry) bool { return e.Table == Frontends })]
	want := func(balanced bool, when string) {
		t.Helper()
		if _, _, err := ask(vip); (err == nil) != balanced {
			t.Errorf("%s: %v, want a balanced connection: %t", when, err, balanced)
		}
	}
	n.run(func() error {
		if err := lab.Pin(); err != nil {
			return err
		}
		want(true, "at first")
		n.unnoticed(Step{Entry: frontend, Remove: true})
		want(true, "without a change of the generation")
		n.write()
		want(false, "after a change")
		n.unnoticed(Step{Entry: frontend})
		want(true, "without a frontend before")
		n.beginChange()
		n.unnoticed(Step{Entry: frontend, Remove: true})
		want(false, "during a change")
		return nil
	})
}

// A processor repeats decisions with the backends of small pools, each with the same chance, and without the backends
// of larger pools.
func TestBackendsOfDecisions(t *testing.T) {
	n := newNode(t)
	var backends []string
	for i := range 6 {
		backends = append(backends, fmt.Sprint("127.0.0.1:", 8080+i))
		serve(t, n.opt.NetNS, backends[i])
	}
	for count := 1; count <= len(backends); count++ {
		n.write(service(vip, 6, OfNode, backends[:count]...)...)
		n.run(func() error {
			hits := map[string]int{}
			const connections = 240
			for range connections {
				answered, _, err := ask(vip)
				if err != nil {
					return err
				}
				hits[answered]++
			}
			low, high := lab.Bounds(connections, 1/float64(count))
			for _, at := range backends[:count] {
				if hits[at] < low || hits[at] > high {
					t.Errorf("of %d backends %s gets %d of %d connections, want %d to %d", count, at, hits[at], connections, low, high)
				}
			}
			return nil
		})
	}
}

// A pod that is no longer known, or has another address, is not the client of decisions before that.
func TestDecisionsOfAPodThatChanges(t *testing.T) {
	n := newNode(t)
	pod := kerneltest.Namespace(t)
	address4(t, pod, "10.1.0.1/32")
	serve(t, pod, "127.0.0.1:8080")
	own := Member{Pool([]byte(service(vip, 6, OfPods)[0].Value)[:16]), netip.MustParseAddrPort("10.1.0.2:0")}.Entry()
	n.write(append(service(vip, 6, OfPods, "127.0.0.1:8080"), own)...)
	inside := lab.Inside(t, n.opt.Cgroup, pod)
	connects := func(want bool, when string) {
		t.Helper()
		err := inside(func() error {
			if err := lab.Pin(); err != nil {
				return err
			}
			return errors.Join(connectOnce(vip), connectOnce(vip))
		})
		if (err == nil) != want {
			t.Errorf("%s: %v, want a connection: %t", when, err, want)
		}
	}
	connects(false, "unknown")
	n.know(pod, "10.1.0.1")
	connects(true, "known")
	n.know(pod, "10.1.0.2")
	connects(false, "with the address of a backend")
	n.know(pod, "10.1.0.1")
	connects(true, "known again")
	n.know(pod)
	connects(false, "unknown again")
}

// Decisions for many Services have the same places, and many clients of the same processor replace them while the
// tables change. Each connection reaches the backend of its Service.
func TestDecisionsOfManyServices(t *testing.T) {
	const services, clients = 600, 8
	connections, edits := seeds.Rounds(t, 400), seeds.Rounds(t, 50)
	n := newNode(t)
	backends := []string{"127.0.0.1:8080", "127.0.0.2:8080", "127.0.0.3:8080"}
	for _, at := range backends {
		serve(t, n.opt.NetNS, at)
	}
	at := func(i int) string { return fmt.Sprintf("10.97.%d.%d:80", i/250, i%250) }
	var list []Entry
	for i := range services {
		pool := Pool{2, byte(i >> 8), byte(i)}
		list = append(list, Slot{Pool: pool, Backend: netip.MustParseAddrPort(backends[i%len(backends)])}.Entry(),
			Frontend{
				At: netip.MustParseAddrPort(at(i)), Protocol: unix.IPPROTO_TCP, Clients: OfNode, Pool: pool, Count: 1,
			}.Entry())
	}
	n.write(list...)
	var inside []func(func() error) error
	for range clients {
		inside = append(inside, lab.Inside(t, n.opt.Cgroup, n.opt.NetNS))
	}
	connect := func(c int) error {
		for i := range connections {
			s := (i*7 + c*61) % services
			if got, _, err := ask(at(s)); err != nil || got != backends[s%len(backends)] {
				return fmt.Errorf("Service %d: %s answers, want %s: %w", s, got, backends[s%len(backends)], err)
			}
		}
		return nil
	}
	for _, changes := range []int{0, edits} {
		var wait sync.WaitGroup
		for c := range clients {
			wait.Go(func() {
				if err := inside[c](func() error { return connect(c) }); err != nil {
					t.Errorf("%d changes: %v", changes, err)
				}
			})
		}
		for range changes {
			n.write(list[:2]...)
		}
		wait.Wait()
	}
}
