//go:build linux

package resolver

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
	"github.com/sluice-proxy/sluice/test/machine"
)

// services returns the lists of name servers in resolv.conf: addresses of the Service. With both, musl queries both
// by one IPv6 socket.
func services() map[string][]string {
	return map[string][]string{"IPv4": {dnsIP4}, "IPv6": {dnsIP6}, "both": {dnsIP4, dnsIP6}}
}

// each runs a subtest for each resolver.
func (e *env) each(do func(*testing.T, resolver)) {
	e.Helper()
	list, err := resolvers()
	if err != nil {
		e.Fatal(err)
	}
	for _, r := range list {
		e.Run(r.name, func(t *testing.T) { do(t, r) })
	}
}

// checkAddrs verifies the result of a look-up.
func checkAddrs(t *testing.T, l lookup, want ...netip.Addr) {
	t.Helper()
	if l.err != "" || !slices.Equal(l.addrs, want) {
		t.Errorf("%s, want %v", l, want)
	}
}

// Every resolver gets the right answers from the Service, in a pod and on the node, and its sockets are connected
// directly to CoreDNS.
func TestResolversAreBalancedAtSockets(t *testing.T) {
	e := newEnv(t)
	e.awaitPod(e.pod)
	e.each(func(t *testing.T, r resolver) {
		for name, servers := range services() {
			for _, from := range []*lab.Host{e.pod, e.lab.NodeA} {
				t.Run(name+" on "+from.Name(), func(t *testing.T) {
					before := e.atSockets("dns")
					for family, want := range map[int][]netip.Addr{4: {web4()}, 6: {web6()}, 0: {web4(), web6()}} {
						for _, l := range e.resolve(r, from, question{servers, family, 4, []string{"web.test"}}) {
							checkAddrs(t, l, want...)
						}
					}
					if n := e.atSockets("dns") - before; n < 12 {
						t.Errorf("%d connections to the Service were decided at sockets, want 12, one for each look-up, or more", n)
					}
				})
			}
		}
	})
}

// A query for both families of a name with one family succeeds. A query for a name that does not exist fails at once.
func TestResolversGetNegativeAnswers(t *testing.T) {
	e := newEnv(t)
	e.awaitPod(e.pod)
	e.each(func(t *testing.T, r resolver) {
		list := e.resolve(r, e.pod, question{[]string{dnsIP4}, 0, 1, []string{"four.test", "absent.test"}})
		checkAddrs(t, list[0], four())
		if l := list[1]; l.err == "" || l.took >= machine.Scale(time.Second) {
			t.Errorf("%s, want an error at once", l)
		}
	})
}

// getent, which uses nsswitch of glibc, prints the addresses.
func TestGetent(t *testing.T) {
	e := newEnv(t)
	getent := resolver{"getent", []string{"sh", "-c", `exec getent ahosts "$3"`, "getent"}}
	c := e.ask(getent, e.lab.NodeA, question{[]string{dnsIP4}, 0, 1, []string{"web.test"}})
	if err := c.wait(); err != nil {
		t.Fatalf("%v: %s", err, &c.out)
	}
	got := strings.Fields(c.out.String())
	if !slices.Contains(got, web4().String()) || !slices.Contains(got, web6().String()) {
		t.Errorf("getent prints %s, want %s and %s", &c.out, web4(), web6())
	}
	if n := e.atSockets("dns"); n == 0 {
		t.Error("no connection was decided at a socket")
	}
}

// If an answer is truncated, glibc and Go send the query again by TCP, also directly to CoreDNS. Before 1.2.4 musl
// takes the addresses of the truncated answer; it returns 48 at most.
func TestTruncatedAnswersAreQueriedByTCP(t *testing.T) {
	e := newEnv(t)
	e.awaitPod(e.pod)
	want := manyAddrs()
	slices.SortFunc(want, netip.Addr.Compare)
	e.each(func(t *testing.T, r resolver) {
		for name, servers := range services() {
			for _, from := range []*lab.Host{e.pod, e.lab.NodeA} {
				t.Run(name+" on "+from.Name(), func(t *testing.T) {
					sockets, queries := e.atSockets("dns-tcp"), e.queries("many.test", "tcp")
					l := e.resolve(r, from, question{servers, 0, 1, []string{"many.test"}})[0]
					sockets, queries = e.atSockets("dns-tcp")-sockets, e.queries("many.test", "tcp")-queries
					if sockets < min(queries, 1) {
						t.Errorf("%d queries by TCP, and %d connections were decided at sockets", queries, sockets)
					}
					if r.name == "musl" {
						missing := slices.ContainsFunc(l.addrs, func(a netip.Addr) bool { return !slices.Contains(want, a) })
						if l.err != "" || len(l.addrs) == 0 || missing {
							t.Errorf("%s, want some of %v", l, want)
						}
						return
					}
					checkAddrs(t, l, want...)
					if queries < 2 { // one for each family
						t.Errorf("%d queries by TCP, want 2", queries)
					}
				})
			}
		}
	})
}

// After an endpoint is removed, no resolver sends queries to it, although CoreDNS still runs there.
func TestNoQueryGoesToARemovedEndpoint(t *testing.T) {
	e := newEnv(t)
	e.awaitPod(e.pod)
	e.endpoints(1)
	e.waitBackends(1)
	e.each(func(t *testing.T, r resolver) {
		for _, from := range []*lab.Host{e.pod, e.lab.NodeA} {
			for _, l := range e.resolve(r, from, question{[]string{dnsIP4, dnsIP6}, 0, 12, []string{"backend.test"}}) {
				checkAddrs(t, l, e.backend[1].Addr4(), e.backend[1].Addr6())
			}
		}
	})
}

// If a backend goes away before it has answered, the resolver gets an answer from another one: at once if its socket
// is connected, and so is destroyed, and otherwise when it sends again, which musl does after a third of its timeout.
func TestUnansweredQueryGoesToAnotherBackend(t *testing.T) {
	e := newEnv(t)
	e.awaitPod(e.pod)
	e.each(func(t *testing.T, r resolver) {
		for _, from := range []*lab.Host{e.pod, e.lab.NodeA} {
			t.Run(from.Name(), func(t *testing.T) {
				e.endpoints(0)
				e.waitBackends(1)
				e.signal(0, syscall.SIGSTOP)
				defer e.signal(0, syscall.SIGCONT)
				before := e.atSockets("dns")
				c := e.ask(r, from, question{[]string{dnsIP4}, 0, 1, []string{"backend.test"}})
				harness.Eventually(t, timeout, func() error {
					if e.atSockets("dns") == before {
						return errors.New("the resolver has sent no query")
					}
					return nil
				})
				e.endpoints(1)
				e.waitBackends(1)
				if err := c.wait(); err != nil {
					t.Fatalf("%v: %s", err, &c.out)
				}
				list, err := c.end()
				if err != nil || len(list) != 1 {
					t.Fatalf("look-ups %v: %v", list, err)
				}
				checkAddrs(t, list[0], e.backend[1].Addr4(), e.backend[1].Addr6())
				if list[0].took >= attempt() {
					t.Errorf("it took %v, want less than the %v of an attempt", list[0].took, attempt())
				}
				t.Logf("it took %v", list[0].took)
			})
		}
	})
}

// retried is a duration of a look-up that shows that the resolver has sent the query again: just less than the
// shortest timeout, which musl has.
const retried = 900 * time.Millisecond

// While resolvers send queries continuously, each CoreDNS is replaced several times, as in a roll-out: its endpoint
// is removed, then it ends, and later the endpoint is added again. Sluice is killed and started in between. Every
// look-up has the right answer.
func TestNoLookupFailsWhileBackendsAndSluiceAreReplaced(t *testing.T) {
	e := newEnv(t)
	e.awaitPod(e.pod)
	list, err := resolvers()
	if err != nil {
		t.Fatal(err)
	}
	const rounds = 4
	before := e.atSockets("dns")
	var clients []*client
	for _, r := range list {
		for _, from := range []*lab.Host{e.pod, e.lab.NodeA} {
			for _, servers := range services() {
				clients = append(clients, e.ask(r, from, question{servers: servers, names: []string{"web.test"}}))
			}
		}
	}
	for round := range rounds {
		for i := range e.server {
			e.replace(i)
		}
		if round < rounds-1 {
			e.kill()
			e.start(2)
		}
	}
	seen := map[string]*tally{}
	for _, c := range clients {
		lookups, err := c.end()
		if err != nil {
			t.Fatal(err)
		}
		if seen[c.r.name] == nil {
			seen[c.r.name] = &tally{}
		}
		seen[c.r.name].add(t, lookups)
	}
	sum := 0
	for name, s := range seen {
		sum += s.lookups
		t.Logf("%s: %s", name, s)
	}
	if n := e.atSockets("dns") - before; n < sum {
		t.Errorf("%d connections were decided at sockets, want one for each of %d look-ups, or more", n, sum)
	}
}

// replace replaces CoreDNS in a pod. CoreDNS serves for a moment after its endpoint is removed, as in its lameduck
// period.
func (e *env) replace(i int) {
	e.Helper()
	e.endpoints(1 - i)
	e.waitBackends(1)
	before := e.queries("web.test", "udp")
	harness.Eventually(e, timeout, func() error { // after that, earlier queries are answered
		if n := e.queries("web.test", "udp"); n < before+20 {
			return fmt.Errorf("%d queries were answered since, want 20", n-before)
		}
		return nil
	})
	if _, err := e.server[i].Stop(syscall.SIGTERM, timeout); err != nil {
		e.Fatal(err)
	}
	e.serve(i)
	e.endpoints(0, 1)
	e.waitBackends(2)
}

// tally sums up the look-ups of a resolver.
type tally struct {
	lookups, retried int
	longest          time.Duration
}

func (s *tally) add(t *testing.T, list []lookup) {
	t.Helper()
	for _, l := range list {
		checkAddrs(t, l, web4(), web6())
		s.lookups++
		if l.took >= retried {
			s.retried++
		}
		s.longest = max(s.longest, l.took)
	}
}

// String returns the numbers as text.
func (s *tally) String() string {
	return fmt.Sprintf("%d look-ups, of which %d took %v or longer, at most %v", s.lookups, s.retried, retried, s.longest)
}
