package userspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/forward"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
)

// sockets are the open sockets and their balancers. It is safe for concurrent use.
type sockets struct {
	engine Engine

	mu        sync.Mutex
	balancers map[portID]*forward.Balancer
	values    map[key]value
	open      map[key]Listener
	leave     []key // to close once no rule leads there
}

func newSockets(e Engine) *sockets {
	return &sockets{engine: e, balancers: map[portID]*forward.Balancer{}, values: map[key]value{}, open: map[key]Listener{}}
}

// writer carries out the steps of one plan.
type writer struct {
	*sockets
	service func(cluster.Name) *route.Service // as the plan leaves it
	target  func(*route.Port) *forward.Target
	taken   func(key) // called if another program has the address of a socket
	opened  func(plane.Socket)
}

// Room implements ledger.Writer.
func (writer) Room() int { return math.MaxInt }

// Size implements ledger.Writer.
func (writer) Size(step) int { return 1 }

// Print implements ledger.Writer.
func (writer) Print(steps []*step) string {
	var b strings.Builder
	for _, s := range steps {
		verb := [...]string{ledger.Add: "open", ledger.Change: "change", ledger.Remove: "close"}[s.Op]
		v := s.New
		if s.Op == ledger.Remove {
			v = s.Old
		}
		if s.Key.part == balancer {
			fmt.Fprintf(&b, "%s balancer %s: %s\n", verb, s.Key, v.target)
			continue
		}
		fmt.Fprintf(&b, "%s listener %s at %s\n", verb, s.Key, v.at)
	}
	return b.String()
}

// Write implements ledger.Writer. A socket that cannot be opened refuses its Service.
func (w writer) Write(_ context.Context, steps []*step) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var opened []*step
	for _, s := range steps {
		if err := w.write(s); err != nil {
			for _, o := range opened { // a refused phase leaves nothing
				w.shut(o.Key)
			}
			return &ledger.Refusal{Phase: s.Phase, Err: err}
		}
		if s.Op == ledger.Add && s.Key.part != balancer {
			opened = append(opened, s)
		}
	}
	return nil
}

func (w writer) write(s *step) error {
	switch {
	case s.Op == ledger.Remove && s.Key.part == balancer:
		delete(w.balancers, s.Key.port)
		delete(w.values, s.Key)
		return nil
	case s.Op == ledger.Remove:
		w.leave = append(w.leave, s.Key)
		delete(w.values, s.Key)
		return nil
	case s.Key.part == balancer:
		w.balance(s.Key.port)
	default:
		if err := w.listen(s); err != nil {
			return err
		}
	}
	w.values[s.Key] = s.New
	return nil
}

// balance sets the target of a balancer.
func (w writer) balance(id portID) {
	for port, of := range portsOf(w.service(id.service)) {
		if of != id {
			continue
		}
		if b := w.balancers[id]; b != nil {
			b.Set(w.target(port))
			return
		}
		w.balancers[id] = forward.NewBalancer(w.target(port))
	}
}

// listen opens a socket. One that waits to be closed serves again.
func (w writer) listen(s *step) error {
	if i := slices.Index(w.leave, s.Key); i >= 0 {
		w.leave = slices.Delete(w.leave, i, i+1)
		if w.open[s.Key] != nil {
			return nil
		}
	}
	if s.New.at.Port() == 0 {
		return errors.New("all ports of the range for listening sockets are in use (portRange)")
	}
	admission := forward.Admission{Pool: s.Key.part.pool()}
	l, err := w.engine.Listen(forward.Spec{
		Protocol: forward.Protocol(s.Key.port.protocol), Addr: s.New.at, Balancer: w.balancers[s.Key.port],
		Admit: func(netip.Addr) forward.Admission { return admission },
	})
	if errors.Is(err, syscall.EADDRINUSE) {
		w.taken(s.Key)
	}
	if err != nil {
		return fmt.Errorf("listen for %s: %w", s.Key, err)
	}
	w.open[s.Key] = l
	w.opened(s.Key.socket(s.New.at))
	return nil
}

// socket describes the socket at an address.
func (k key) socket(at netip.AddrPort) plane.Socket {
	return plane.Socket{
		Service: k.port.service, Port: k.port.label(), Protocol: k.port.protocol, Pool: route.Pool(k.part.pool()), At: at,
	}
}

func (w writer) shut(k key) {
	w.open[k].Close()
	delete(w.open, k)
	delete(w.values, k)
}

// close closes the sockets that were removed, and returns them.
func (s *sockets) close() []key {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.leave
	s.leave = nil
	for _, k := range list {
		if l := s.open[k]; l != nil {
			l.Close()
			delete(s.open, k)
		}
	}
	return list
}

// listing returns what is open.
func (s *sockets) listing() *listing {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &listing{maps.Clone(s.values)}
}

// listing is a ledger.Listing of sockets and balancers.
type listing struct{ left map[key]value }

// Take implements ledger.Listing.
func (l *listing) Take(want entry) (value, ledger.Match) {
	had, there := l.left[want.Key]
	delete(l.left, want.Key)
	switch {
	case !there:
		return had, ledger.Absent
	case had == want.Value:
		return had, ledger.Equal
	}
	return had, ledger.Different
}

// Rest implements ledger.Listing.
func (l *listing) Rest() []step {
	var steps []step
	for k, v := range l.left {
		steps = append(steps, step{Op: ledger.Remove, Key: k, Old: v})
	}
	slices.SortFunc(steps, func(a, b step) int { return cmp.Or(a.Key.compare(b.Key), cmp.Compare(a.Op, b.Op)) })
	return steps
}
