package userspace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/forward"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// errEnded is returned for a plan of a plane whose sockets belong to the next run of the program.
var errEnded = errors.New("the sockets belong to the next run of the program")

// keeper runs an engine. If another run of the program follows, it keeps the sockets open for that.
type keeper struct {
	engine *forward.Engine
	plane  *Plane
	wanted atomic.Bool
	done   chan struct{} // closed when the result is there
	close  func()
	result *plane.Inherited
	err    error
}

func newKeeper(e *forward.Engine, p *Plane) *keeper {
	k := &keeper{engine: e, plane: p, done: make(chan struct{})}
	k.close = sync.OnceFunc(func() { close(k.done) })
	return k
}

// handOver implements plane.Opened.HandOver.
func (k *keeper) handOver() func(context.Context) (*plane.Inherited, error) {
	k.wanted.Store(true)
	return func(ctx context.Context) (*plane.Inherited, error) {
		select {
		case <-k.done:
			return k.result, k.err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// run forwards until the context ends. If another run follows, it then waits for the end of a write, takes the
// sockets out of the engine, and returns.
func (k *keeper) run(ctx context.Context) error {
	forwarding, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer k.close()
	ended := make(chan error, 1)
	go func() { ended <- k.engine.Run(forwarding) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	if k.wanted.Load() {
		k.result, k.err = k.plane.leave(k.engine)
		k.close() // the engine ends meanwhile
	}
	stop()
	return <-ended
}

// estate is what a plane hands over.
type estate struct {
	Range     PortRange
	Complete  bool // all rules point to these sockets
	Balancers []heldBalancer
	Sockets   []heldSocket
	Closed    []*forward.Handed `json:",omitempty"`
}

// heldPort is a portID that can be encoded.
type heldPort struct {
	Service  cluster.Name
	Family   route.Family
	Protocol cluster.Protocol
	Name     string `json:",omitempty"`
	Nth      int    `json:",omitempty"`
}

func heldPortOf(id portID) heldPort {
	return heldPort{id.service, id.family, id.protocol, id.name, id.nth}
}

func (p heldPort) id() portID { return portID{p.Service, p.Family, p.Protocol, p.Name, p.Nth} }

// heldBalancer is a balancer in an estate.
type heldBalancer struct {
	Port    heldPort
	Target  *forward.Target
	Clients []forward.Client `json:",omitempty"`
}

// heldSocket is a socket in an estate.
type heldSocket struct {
	Port   heldPort
	Part   part
	At     netip.AddrPort
	Pool   route.Pool
	Handed *forward.Handed
}

// leaveTime is how long the workers of an engine may take to give up their sockets.
const leaveTime = 3 * time.Second

// leave takes the sockets out of the engine, when no write is in progress, and ends the plane.
func (p *Plane) leave(e *forward.Engine) (*plane.Inherited, error) {
	p.writing.Lock()
	defer p.writing.Unlock()
	p.ended = true
	ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
	defer cancel()
	handed, err := e.HandOver(ctx)
	if err != nil {
		return nil, err
	}
	in := &plane.Inherited{Numbers: map[int]int{}}
	for _, h := range handed {
		in.Descriptors = append(in.Descriptors, h.Descriptors()...)
	}
	for _, fd := range in.Descriptors {
		in.Numbers[fd] = fd
	}
	in.State, err = json.Marshal(p.sockets.estate(handed, p.ports.from))
	return in, err
}

// estate returns what the sockets hand over.
func (s *sockets) estate(handed map[*forward.Listener]*forward.Handed, from PortRange) *estate {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &estate{Range: from, Complete: s.guarded.Load() && len(s.leave) == 0}
	for id, b := range s.balancers {
		out.Balancers = append(out.Balancers, heldBalancer{heldPortOf(id), b.Target(), b.Clients()})
	}
	for k, v := range s.values {
		l, is := s.open[k].(*forward.Listener)
		if h := handed[l]; is && h != nil {
			out.Sockets = append(out.Sockets, heldSocket{heldPortOf(k.port), k.part, v.at, v.pool, h})
			delete(handed, l)
		}
	}
	for _, h := range handed {
		out.Closed = append(out.Closed, h)
	}
	return out
}

// inherit adopts the sockets of the previous run of the program, so that the first plan finds them open.
func (p *Plane) inherit(e *forward.Engine, in *plane.Inherited, adopt adoption) error {
	if in == nil {
		return nil
	}
	var from estate
	if err := json.Unmarshal(in.State, &from); err != nil {
		return fmt.Errorf("read the sockets of the previous run: %w", err)
	}
	from.renumber(in.Numbers)
	p.sockets.mu.Lock()
	defer p.sockets.mu.Unlock()
	for _, b := range from.Balancers {
		id := b.Port.id()
		again := forward.NewBalancer(b.Target)
		again.Remember(b.Clients)
		p.sockets.balancers[id] = again
		p.sockets.values[key{port: id, part: balancer}] = value{target: print(b.Target)}
	}
	complete := from.Complete
	for _, s := range from.Sockets {
		fits := from.Range == p.ports.from && p.ports.addrs[s.Port.Family] == s.At.Addr()
		if !fits || !p.adopt(s, adopt) {
			complete = complete && fits
			from.Closed = append(from.Closed, s.Handed)
		}
	}
	for _, h := range from.Closed {
		e.Drain(forward.NewBalancer(&forward.Target{}), h)
	}
	p.sockets.guarded.Store(complete)
	return nil
}

// renumber replaces the file descriptors by those of this process, and closes unused ones.
func (e *estate) renumber(numbers map[int]int) {
	var rest []int
	for _, s := range e.Sockets {
		rest = append(rest, s.Handed.Renumber(numbers)...)
	}
	for _, h := range e.Closed {
		rest = append(rest, h.Renumber(numbers)...)
	}
	for _, fd := range rest {
		_ = os.NewFile(uintptr(fd), "inherited").Close() // nothing was written to it
	}
}

// adoption opens a Listener with what one of the previous run has handed over.
type adoption func(forward.Spec, *forward.Handed) (*forward.Listener, error)

// listenAgain is the adoption of a plane. If the socket was closed, a new one takes its place.
func listenAgain(e *forward.Engine) adoption {
	return func(s forward.Spec, h *forward.Handed) (*forward.Listener, error) {
		if h.Socket >= 0 {
			s.Inherited = os.NewFile(uintptr(h.Socket), s.Addr.String())
		}
		h.Socket = -1 // the engine has closed it, or has its own
		l, err := e.Listen(s)
		if err == nil {
			l.Adopt(h)
		}
		return l, err
	}
}

// adopt adopts an inherited socket. It returns false if that failed.
func (p *Plane) adopt(s heldSocket, adopt adoption) bool {
	k := key{port: s.Port.id(), part: s.Part}
	to := p.sockets.balancers[k.port]
	if to == nil {
		return false
	}
	l, err := adopt(forward.Spec{
		Protocol: forward.Protocol(k.port.protocol), Addr: s.At, Balancer: to, Admit: p.admit(k, value{at: s.At, pool: s.Pool}, nil),
	}, s.Handed)
	if err != nil {
		return false
	}
	p.ports.keep(k, s.At)
	p.sockets.open[k], p.sockets.values[k] = l, value{at: s.At, pool: s.Pool}
	return true
}

// keep records the address of an inherited socket.
func (p *ports) keep(k key, at netip.AddrPort) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.take(k, at)
}
