package userspace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/relay"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
	"github.com/sluice-proxy/sluice/test/seeds"
)

// The model test: after any sequence of changes, failures and restarts the open sockets, targets
// and rules equal those made from scratch, and each rule always leads to an open socket.

func TestModelWithRules(t *testing.T) {
	for seed := range seeds.Of(t, 20) {
		if err := planetest.NewModel(seed, newSubject(newFakeRules()).hooks()).Run(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestModelWithoutRules(t *testing.T) {
	for seed := range seeds.Of(t, 20) {
		if err := planetest.NewModel(seed, newSubject(nil).hooks()).Run(); err != nil {
			t.Fatal(err)
		}
	}
}

// subject is a process with its sockets, and a kernel with rules.
type subject struct {
	faults *planetest.Faults
	rules  *fakeRules // nil: there are none
	engine *fakeEngine
	plane  *Plane

	reads  bool  // the next plane is a reader
	settle bool  // the rules of this process are written; those of an earlier one lead nowhere
	wrong  error // the first rule that led nowhere
}

func newSubject(rules *fakeRules) *subject {
	s := &subject{faults: &planetest.Faults{}, rules: rules}
	if rules != nil {
		rules.faults = s.faults
	}
	return s
}

func (s *subject) hooks() planetest.Subject {
	return planetest.Subject{
		Plane: s.open, Faults: s.faults, Rooms: []int{1}, State: s.state, Edit: s.edit, Audit: s,
		Scratch: func() planetest.Subject {
			if s.rules == nil {
				return newSubject(nil).hooks()
			}
			return newSubject(newFakeRules()).hooks()
		},
	}
}

// open starts a new process, whose sockets are all closed, or returns a reader.
func (s *subject) open(opt route.Options) plane.Plane {
	o := Options{}
	if s.rules != nil {
		o.Rules = &rulePlane{fakeRules: s.rules}
	}
	if s.reads {
		s.reads = false
		return s.plane.Reader(o.Rules)
	}
	o.Addrs = loopbackAddrs(opt.Families)
	s.engine, s.settle = newFakeEngine(), false
	s.engine.faults, s.engine.closed = s.faults, s.Note
	s.plane = New(s.engine.Listen, o)
	return injected{s.plane}
}

// injected is a plane whose refusals of Services are all injected errors.
type injected struct{ *Plane }

// Plan implements plane.Plane.
func (p injected) Plan(c route.Change) plane.Plan { return injectedPlan{p.Plane.Plan(c)} }

type injectedPlan struct{ plane.Plan }

// Apply implements plane.Plan.
func (p injectedPlan) Apply(ctx context.Context) error {
	err := p.Plan.Apply(ctx)
	refused, is := errors.AsType[plane.Refused](err)
	if !is {
		return err
	}
	for _, reason := range refused {
		if !errors.Is(reason, planetest.ErrInjected) {
			return reason
		}
	}
	return planetest.ErrInjected
}

// edit changes the rules as another program might.
func (s *subject) edit(w *planetest.World) error {
	if s.rules == nil {
		return nil
	}
	for k := range s.rules.rules {
		if w.Chance(6) {
			delete(s.rules.rules, k)
		}
	}
	s.rules.rules[ruleKey{route.Key{Addr: netip.MustParseAddr("172.30.9.9")}, 0}] = rule{}
	return nil
}

// Begin implements planetest.Audit.
func (s *subject) Begin(*planetest.Model) {}

// Note implements planetest.Audit: each rule leads to an open socket of its port and pool.
func (s *subject) Note() {
	if s.rules == nil || s.wrong != nil {
		return
	}
	for k, r := range s.rules.rules {
		if r == (rule{}) { // of another program
			continue
		}
		l := s.engine.open[socketAddr{r.port.Protocol, r.at}]
		switch {
		case l == nil && s.settle:
			s.wrong = fmt.Errorf("the rule for %v leads to a closed socket: %v", k, r)
		case l != nil && (l.pool() != r.pool || l.balancer != s.plane.sockets.balancers[r.port]):
			s.wrong = fmt.Errorf("the rule for %v leads to the socket of another port or pool: %v", k, r)
		}
	}
}

// End implements planetest.Audit.
func (s *subject) End(*planetest.Model) error {
	s.reads, s.settle = true, true
	s.Note()
	return s.wrong
}

// state prints sockets, targets and rules. Without rules a port depends on history, as several
// Services prefer the same.
func (s *subject) state(*route.Table) (string, error) {
	var lines []string
	known, fixed := 0, 0 // fixed: sockets at addresses of frontends
	for k, v := range s.plane.sockets.values {
		b := s.plane.sockets.balancers[k.port]
		if k.part == balancer {
			lines = append(lines, fmt.Sprint(k, " ", v.target, " ", backendsOf(b)))
			continue
		}
		if known++; k.part == frontendSocket {
			fixed++
		}
		l := s.engine.open[socketAddr{k.port.Protocol, v.at}]
		if l == nil || l.pool() != v.pool || l.balancer != b {
			return "", fmt.Errorf("socket %s at %s is not open as it should be: %+v", k, v.at, l)
		}
		if s.rules != nil {
			lines = append(lines, fmt.Sprint(k, " ", v.at, " ", v.pool))
		} else {
			lines = append(lines, fmt.Sprint(k, " ", v.pool))
		}
	}
	p := s.plane
	if n := len(p.sockets.open); n != known || len(s.engine.open) != known || len(p.sockets.leave) > 0 {
		return "", fmt.Errorf("%d sockets are known, %d open here, %d in the engine, %v wait", known, n, len(s.engine.open),
			p.sockets.leave)
	}
	if n := len(p.ports.at); n != known-fixed+closedNow(p) || len(p.ports.users) != n {
		return "", fmt.Errorf("of %d sockets %d have fixed addresses, and %d other addresses, of which %d are in use: %v",
			known, fixed, n, len(p.ports.users), p.ports.at)
	}
	if s.rules != nil {
		for _, k := range slices.Collect(maps.Keys(s.rules.rules)) {
			lines = append(lines, fmt.Sprint(k, s.rules.rules[k]))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n"), nil
}

// closedNow counts the addresses of sockets that the last plan closed.
func closedNow(p *Plane) int {
	n := 0
	for _, k := range p.ports.leave {
		if _, has := p.ports.at[k]; has {
			n++
		}
	}
	return n
}

// backendsOf lists the backends of both pools of a balancer.
func backendsOf(b *relay.Balancer) string {
	var text strings.Builder
	for pool := range 2 {
		for _, at := range slices.SortedFunc(maps.Keys(b.Shares(netip.Addr{}, pool)), netip.AddrPort.Compare) {
			fmt.Fprint(&text, at, " ")
		}
		text.WriteString("; ")
	}
	return text.String()
}
