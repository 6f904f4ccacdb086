package userspace

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/relay"
	"github.com/sluice-proxy/sluice/internal/route"
)

const backend = "127.0.0.1:9"

// Clients on this host find a port where they look for it: at its number, or at 8080 in place of 80.
func TestPreferredPorts(t *testing.T) {
	r := newRig(t, Options{})
	r.ok(r.load(
		service("db", tcp(5432, backend)), service("dns", tcp(53, backend), over(tcp(53, backend), cluster.UDP)),
		service("web", tcp(80, backend)),
	))
	for name, want := range map[string][]string{
		"db": {"127.0.0.1:5432"}, "dns": {"127.0.0.1:8053", "127.0.0.1:8053"}, "web": {"127.0.0.1:8080"},
	} {
		if got := r.listed(name); !slices.Equal(got, at(want...)) {
			t.Errorf("%s listens at %v, want %v", name, got, want)
		}
	}
}

// The second Service with the same port gets another one, which stays when the first is deleted.
func TestCollision(t *testing.T) {
	r := newRig(t, Options{})
	r.ok(r.load(service("a", tcp(80, backend)), service("b", tcp(80, backend))))
	second := r.listed("b")
	if !slices.Equal(r.listed("a"), at("127.0.0.1:8080")) || len(second) != 1 || second[0].Port() == 8080 {
		t.Fatalf("a listens at %v, b at %v", r.listed("a"), second)
	}
	r.ok(r.set(service("a")))
	r.ok(r.set(service("b", tcp(80, backend, "127.0.0.1:10"))))
	r.ok(r.load(service("b", tcp(80, backend))))
	if !slices.Equal(r.listed("b"), second) {
		t.Errorf("b moved from %v to %v", second, r.listed("b"))
	}
	r.ok(r.set(service("c", tcp(8080, backend))))
	if !slices.Equal(r.listed("c"), at("127.0.0.1:8080")) {
		t.Errorf("c listens at %v, want the port that a had", r.listed("c"))
	}
}

// A restart with Services in another order leads to the same ports.
func TestPortsAreTheSameAfterARestart(t *testing.T) {
	list := []*route.Service{
		service("a", tcp(80, backend)), service("b", tcp(81, backend)), service("c", tcp(443, backend)),
	}
	first, second := newRuleRig(t, Options{}), newRuleRig(t, Options{})
	r := first
	r.ok(r.load(list...))
	for _, svc := range []int{2, 0, 1} {
		if svc == 2 {
			second.ok(second.load(list[svc]))
			continue
		}
		second.ok(second.set(list[svc]))
	}
	if diff := cmp.Diff(first.Sockets(), second.Sockets(), cmp.Comparer(equalSockets)); diff != "" {
		t.Errorf("other order: -first +second\n%s", diff)
	}
}

func equalSockets(a, b plane.Socket) bool { return a == b }

// If the range is full, only the Service that needs a port is refused, until another one is deleted.
func TestFullRange(t *testing.T) {
	r := newRuleRig(t, Options{Ports: PortRange{20000, 20001}})
	a, b, c := service("a", tcp(80, backend)), service("b", tcp(81, backend)), service("c", tcp(82, backend))
	wantRefused(t, r.load(a, b, c), "c", "all ports of the range for listening sockets are in use (portRange)")
	if len(r.listed("a")) != 1 || len(r.listed("b")) != 1 || len(r.listed("c")) != 0 {
		t.Errorf("the sockets are %v", r.Sockets())
	}
	r.ok(r.set(service("a"))) // its port is free two writes later
	wantRefused(t, r.load(b, c), "c", "in use")
	r.ok(r.load(b, c))
	if len(r.listed("c")) != 1 {
		t.Errorf("the sockets are %v", r.Sockets())
	}
}

// wantRefused verifies that an error refuses one Service for a reason.
func wantRefused(t *testing.T, err error, name, reason string) {
	t.Helper()
	refused, is := errors.AsType[plane.Refused](err)
	if !is || len(refused) != 1 || refused[svcName(name)] == nil ||
		!strings.Contains(refused[svcName(name)].Error(), reason) {
		t.Errorf("got %v, want only %s refused: %s", err, name, reason)
	}
}

// A port that another program has is refused once, and the next attempt uses another one. When no
// port is left, those of other programs are tried again.
func TestPortOfAnotherProgram(t *testing.T) {
	r := newRig(t, Options{Ports: PortRange{20000, 20000}})
	taken := func(text string) socketAddr { return socketAddr{cluster.TCP, at(text)[0]} }
	r.engine.others[taken("127.0.0.1:8080")] = true
	r.engine.others[taken("127.0.0.1:20000")] = true
	a, b := service("a", tcp(80, backend)), service("b", tcp(90, backend))
	err := r.load(a, b)
	wantRefused(t, err, "a", "listen for ns/a tcp IPv4 at 127.0.0.1:8080: another program has this port")
	if refused, is := errors.AsType[plane.Refused](err); is &&
		plane.Problem(refused[svcName("a")]) != "a listening socket cannot be opened" {
		t.Errorf("the problem is %q", plane.Problem(refused[svcName("a")]))
	}
	if !slices.Equal(r.listed("b"), at("127.0.0.1:8090")) {
		t.Errorf("b listens at %v", r.listed("b"))
	}
	wantRefused(t, r.load(a, b), "a", "127.0.0.1:20000")
	wantRefused(t, r.load(a, b), "a", "portRange")
	delete(r.engine.others, taken("127.0.0.1:20000"))
	wantRefused(t, r.load(a, b), "a", "127.0.0.1:8080")
	r.ok(r.load(a, b))
	if !slices.Equal(r.listed("a"), at("127.0.0.1:20000")) {
		t.Errorf("a listens at %v", r.listed("a"))
	}
}

// A Service of which one socket cannot be opened keeps its others: the rules lead to these, and
// its other ports are rejected. A plan tries each socket once.
func TestRefusedServiceKeepsItsSockets(t *testing.T) {
	r := newRuleRig(t, Options{})
	other := tcp(81, backend)
	other.Name = "other"
	r.ok(r.load(service("a", tcp(80, backend)), service("b", tcp(82, backend))))
	before := r.engine.listens
	r.engine.refuse = func(relay.Spec) error { return errors.New("no descriptors") }
	wantRefused(t, r.load(service("a", tcp(80, backend), other), service("b", tcp(82, backend, "127.0.0.1:10"))), "a",
		"no descriptors")
	if n := r.engine.listens - before; n != 1 {
		t.Errorf("%d attempts to open one socket", n)
	}
	if len(r.listed("a")) != 1 || len(r.rules.rules) != 6 {
		t.Errorf("the sockets are %v, the rules %v; want two Services with a port each", r.Sockets(), r.rules.rules)
	}
	if at := r.Sockets()[0].At; r.rules.rules[ruleKey{other.Key(&tcp(80).Frontends[0]), 0}].at != at {
		t.Errorf("no rule leads to %s: %v", at, r.rules.rules)
	}
}

// While the rules of a Service are refused, the sockets to which its old rules lead stay.
func TestSocketsOfRefusedRulesStay(t *testing.T) {
	r := newRuleRig(t, Options{})
	a := to(tcp(80, backend), route.Cluster)
	r.ok(r.load(service("a", a), service("b", tcp(82, backend))))
	old := r.listed("a")[0]
	r.rules.refused = func(name cluster.Name) error {
		if name == svcName("a") {
			return errors.New("too long")
		}
		return nil
	}
	local := service("a", to(a, route.Local))
	wantRefused(t, r.load(local, service("b", tcp(82, backend))), "a", "too long")
	r.ok(r.set(service("b", tcp(82, backend, "127.0.0.1:10"))))
	if r.engine.open[socketAddr{cluster.TCP, old}] == nil {
		t.Error("the socket is closed to which the old rules lead")
	}
	r.rules.refused = func(cluster.Name) error { return nil }
	r.ok(r.load(local, service("b", tcp(82, backend))))
	if r.engine.open[socketAddr{cluster.TCP, old}] != nil || len(r.engine.open) != 2 {
		t.Errorf("open are %v, want only the sockets of the new rules", r.engine.open)
	}
}

// Without rules a socket stays at its address when the pool changes.
func TestPoolChangesWithoutRules(t *testing.T) {
	r := newRig(t, Options{})
	r.ok(r.load(service("a", to(tcp(80, backend), route.Cluster))))
	r.ok(r.set(service("a", to(tcp(80, backend), route.Local))))
	socket := r.Sockets()[0]
	if socket.Pool != route.Local || socket.At != at("127.0.0.1:8080")[0] || r.engine.listens != 1 {
		t.Errorf("the socket is %+v after %d calls of Listen", socket, r.engine.listens)
	}
	if l := r.engine.open[socketAddr{cluster.TCP, socket.At}]; l.pool() != route.Local {
		t.Errorf("it leads to pool %d", l.pool())
	}
}
