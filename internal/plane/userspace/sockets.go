package userspace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/relay"
	"github.com/sluice-proxy/sluice/internal/route"
)

// sockets are the open sockets and their balancers. It is safe for concurrent use.
type sockets struct {
	listen   Listen
	guarded  atomic.Bool  // clients are admitted
	failures atomic.Int64 // sockets that could not be opened, since the start

	mu        sync.Mutex
	balancers map[route.PortID]*relay.Balancer
	values    map[key]value
	open      map[key]Listener
	absent    map[key]*absent // those of the open ones that are none (Options.Absent)
	retried   time.Time       // when the absent ones were tried again
	leave     []key           // sockets and balancers to close once no rule points to them

	inherited  map[string]*os.File       // listening sockets of the previous run that are not adopted yet
	remembered map[string][]relay.Client // clients with session affinity in the previous run, by the text of a PortID
}

func newSockets(listen Listen) *sockets {
	return &sockets{
		listen: listen, balancers: map[route.PortID]*relay.Balancer{}, values: map[key]value{}, open: map[key]Listener{},
		absent: map[key]*absent{},
	}
}

// counts returns the counters of all balancers.
func (s *sockets) counts() map[route.PortID]relay.Counts {
	s.mu.Lock()
	all := maps.Clone(s.balancers)
	s.mu.Unlock()
	out := make(map[route.PortID]relay.Counts, len(all))
	for id, b := range all {
		out[id] = b.Counts()
	}
	return out
}

// writer carries out the steps of one plan.
type writer struct {
	*sockets
	plane   *Plane
	service func(cluster.Name) *route.Service // as the plan leaves it
	failed  map[key]error                     // sockets that could not be opened; a plan tries each once
	lacks   map[netip.Addr]error              // addresses that this host could not get
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
		to := v.pool.String()
		if s.Key.part == frontendSocket {
			to = v.policy.String()
		}
		fmt.Fprintf(&b, "%s listener %s %s at %s\n", verb, s.Key.port, to, v.at)
	}
	return b.String()
}

// Write implements ledger.Writer. A socket that cannot be opened refuses its Service.
func (w writer) Write(ctx context.Context, steps []*step) error {
	w.addAddresses(ctx, steps)
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, s := range steps {
		if err := w.write(s); err != nil {
			for _, done := range steps[:i] { // a refused phase leaves nothing
				if done.Phase == s.Phase {
					w.undo(done)
				}
			}
			return &ledger.Refusal{Phase: s.Phase, Err: err}
		}
	}
	return nil
}

// undo reverts a step that opened or changed a socket. A socket that it opened may have waited to be
// closed, so it waits again.
func (w writer) undo(s *step) {
	if s.Op == ledger.Change {
		w.open[s.Key].Set(w.balancers[s.Key.port], w.plane.admit(s.Key, s.Old, nil))
		w.values[s.Key] = s.Old
		return
	}
	w.leave = append(w.leave, s.Key)
	delete(w.values, s.Key)
}

func (w writer) write(s *step) error {
	switch {
	case s.Op == ledger.Remove:
		w.leave = append(w.leave, s.Key)
		delete(w.values, s.Key)
		return nil
	case s.Key.part == balancer:
		w.stay(s.Key)
		w.balance(s.Key.port)
	case s.Op == ledger.Change:
		w.open[s.Key].Set(w.balancers[s.Key.port], w.plane.admit(s.Key, s.New, w.service(s.Key.port.Service)))
	default:
		if err := w.openSocket(s); err != nil {
			return err
		}
	}
	w.values[s.Key] = s.New
	return nil
}

// balance sets the target of a balancer.
func (w writer) balance(id route.PortID) {
	svc := w.service(id.Service)
	for i := range svc.Ports {
		port := &svc.Ports[i]
		if port.ID(svc.Name) != id {
			continue
		}
		if b := w.balancers[id]; b != nil {
			b.Set(w.plane.targetOf(port))
			return
		}
		w.balancers[id] = relay.NewBalancer(w.plane.targetOf(port))
		w.balancers[id].Remember(w.remembered[id.String()])
	}
}

// openSocket opens a socket. One that waits to be closed serves again.
func (w writer) openSocket(s *step) error {
	if w.stay(s.Key) {
		w.open[s.Key].Set(w.balancers[s.Key.port], w.plane.admit(s.Key, s.New, w.service(s.Key.port.Service)))
		return nil
	}
	if err := w.failed[s.Key]; err != nil {
		return err
	}
	if err := w.lacks[s.New.at.Addr()]; err != nil {
		return err
	}
	if s.New.at.Port() == 0 {
		return &plane.NoSocket{Err: errors.New("all ports of the range for listening sockets are in use (portRange)")}
	}
	inherited := w.inheritedSocket(s.Key, s.New.at)
	spec := relay.Spec{
		Protocol: relay.Protocol(s.Key.port.Protocol), Addr: s.New.at, Balancer: w.balancers[s.Key.port],
		Admit: w.plane.admit(s.Key, s.New, w.service(s.Key.port.Service)), Inherited: inherited,
	}
	l, err := w.listen(spec)
	if relay.InUse(err) {
		w.plane.ports.refuse(s.Key)
		err = fmt.Errorf("another program has this port: %w", err)
	}
	if err != nil {
		w.failures.Add(1)
		reason := &plane.NoSocket{Err: fmt.Errorf("listen for %s at %s: %w", s.Key.port, s.New.at, err)}
		if w.plane.opt.Absent == nil {
			w.failed[s.Key] = reason
			return reason
		}
		spec.Inherited = nil
		w.absent[s.Key] = &absent{spec}
		w.open[s.Key], w.retried = w.absent[s.Key], time.Now()
		w.plane.opt.Absent(s.Key.port.Service, reason)
		return nil
	}
	w.open[s.Key] = l
	if inherited == nil {
		w.plane.opt.Opened(s.Key.socket(s.New))
	}
	return nil
}

// socket describes the socket of a key.
func (k key) socket(v value) plane.Socket {
	return plane.Socket{Service: k.port.Service, Port: k.port.Name, Protocol: k.port.Protocol, Pool: v.pool, At: v.at}
}

// stay makes an entry that waits to be closed stay. It returns false if none waits.
func (s *sockets) stay(k key) bool {
	i := slices.Index(s.leave, k)
	if i < 0 {
		return false
	}
	s.leave = slices.Delete(s.leave, i, i+1)
	return true
}

// close closes what was removed, except for some Services, and returns it.
func (s *sockets) close(except map[cluster.Name]bool) []key {
	s.mu.Lock()
	defer s.mu.Unlock()
	var closed, left []key
	for _, k := range s.leave {
		switch l := s.open[k]; {
		case except[k.port.Service]:
			left = append(left, k)
			continue
		case k.part == balancer:
			if b := s.balancers[k.port]; b != nil {
				b.Forget()
			}
			delete(s.balancers, k.port)
		case l != nil:
			l.Close()
			delete(s.open, k)
			delete(s.absent, k)
		}
		closed = append(closed, k)
	}
	s.leave = left
	return closed
}

// count returns the number of open sockets.
func (s *sockets) count() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return float64(len(s.open) - len(s.absent))
}

// isOpen reports whether a socket is open.
func (s *sockets) isOpen(k key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open[k] != nil
}

// serves reports whether a socket is open and wanted.
func (s *sockets) serves(k key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, wanted := s.values[k]
	return wanted
}

// listing returns what is open.
func (s *sockets) listing() ledger.MapListing[key, value] {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.values)
}

// Balance returns the backends of a port of a Service with their open connections. It is safe for concurrent use.
func (p *Plane) Balance(_ context.Context, svc *route.Service, port int, _ *route.Host) (plane.Balance, error) {
	at := &svc.Ports[port]
	b := plane.Balance{}
	if balancer := p.sockets.balancer(at.ID(svc.Name)); balancer != nil {
		for to, open := range balancer.Open() {
			b[to] = plane.Balanced{Weight: uint32(at.Weight(to)), Active: open}
		}
	}
	return b, nil
}

// Traffic returns what was counted. It is safe for concurrent use.
func (p *Plane) Traffic(context.Context, *route.Snapshot) (plane.Counted, error) {
	all := plane.Counted{}
	for id, n := range p.sockets.counts() {
		all[id] = plane.PortTraffic{Traffic: plane.Traffic{
			plane.Connections: uint64(n.Connections), plane.Live: uint64(n.Open), plane.Failures: uint64(n.Failures),
			plane.Received: uint64(n.Received), plane.Sent: uint64(n.Sent),
		}}
	}
	return all, nil
}

// Shares returns how probable it is now that each backend gets the next connection of a client. It is
// safe for concurrent use.
func (p *Plane) Shares(by plane.Connection) plane.Shares {
	shares := plane.Shares{Of: map[netip.AddrPort]float64{}, How: "with the chances that the next connection has"}
	if b := p.sockets.balancer(by.Service.Ports[by.Port].ID(by.Service.Name)); b != nil {
		shares.Of = b.Shares(by.Client, int(by.Way.Pool))
	}
	return shares
}

// balancer returns the balancer of a port; nil: it has none.
func (s *sockets) balancer(id route.PortID) *relay.Balancer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.balancers[id]
}

// Sockets lists the open sockets, sorted. It is safe for concurrent use.
func (p *Plane) Sockets() []plane.Socket {
	s := p.sockets
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(s.open), key.compare)
	list := make([]plane.Socket, 0, len(keys))
	for _, k := range keys {
		if s.absent[k] != nil {
			continue
		}
		socket := k.socket(s.values[k])
		if b := s.balancers[k.port]; b != nil {
			socket.Open = b.Counts().Open
		}
		list = append(list, socket)
	}
	return list
}
