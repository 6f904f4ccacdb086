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

// runner runs an engine. If another run of the program follows, it keeps the sockets open for that.
type runner struct {
	engine *forward.Engine
	plane  *Plane
	wanted atomic.Bool
	done   chan struct{} // closed when the result is there
	close  func()
	result *plane.Inherited
	err    error
}

func newRunner(e *forward.Engine, p *Plane) *runner {
	r := &runner{engine: e, plane: p, done: make(chan struct{})}
	r.close = sync.OnceFunc(func() { close(r.done) })
	return r
}

// handOver implements plane.Opened.HandOver.
func (r *runner) handOver() func(context.Context) (*plane.Inherited, error) {
	r.wanted.Store(true)
	return func(ctx context.Context) (*plane.Inherited, error) {
		select {
		case <-r.done:
			return r.result, r.err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// run forwards until the context ends. If another run follows, it then waits for the end of a write, takes the
// sockets out of the engine, and returns.
func (r *runner) run(ctx context.Context) error {
	forwarding, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer r.close()
	ended := make(chan error, 1)
	go func() { ended <- r.engine.Run(forwarding) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	if r.wanted.Load() {
		r.result, r.err = r.plane.leave(r.engine)
		r.close() // the engine ends meanwhile
	}
	stop()
	return <-ended
}

// handedState is what a plane hands over.
type handedState struct {
	Range     PortRange
	Complete  bool // all rules point to these sockets
	Balancers []handedBalancer
	Sockets   []handedSocket
	Closed    []*forward.Handed `json:",omitempty"`
}

// handedPort is a portID that can be encoded.
type handedPort struct {
	Service  cluster.Name
	Family   route.Family
	Protocol cluster.Protocol
	Name     string `json:",omitempty"`
	Nth      int    `json:",omitempty"`
}

func handedPortOf(id portID) handedPort {
	return handedPort{id.service, id.family, id.protocol, id.name, id.nth}
}

func (p handedPort) id() portID { return portID{p.Service, p.Family, p.Protocol, p.Name, p.Nth} }

// handedBalancer is a balancer in a handedState.
type handedBalancer struct {
	Port    handedPort
	Target  *forward.Target
	Clients []forward.Client `json:",omitempty"`
}

// handedSocket is a socket in a handedState.
type handedSocket struct {
	Port   handedPort
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
	in.State, err = json.Marshal(p.sockets.handOver(handed, p.ports.from))
	return in, err
}

// handOver returns what the sockets hand over.
func (s *sockets) handOver(handed map[*forward.Listener]*forward.Handed, from PortRange) *handedState {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &handedState{Range: from, Complete: s.guarded.Load() && len(s.leave) == 0}
	for id, b := range s.balancers {
		out.Balancers = append(out.Balancers, handedBalancer{handedPortOf(id), b.Target(), b.Clients()})
	}
	for k, v := range s.values {
		l, is := s.open[k].(*forward.Listener)
		if h := handed[l]; is && h != nil {
			out.Sockets = append(out.Sockets, handedSocket{handedPortOf(k.port), k.part, v.at, v.pool, h})
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
	from, err := readState(in)
	if err != nil {
		return err
	}
	p.sockets.mu.Lock()
	defer p.sockets.mu.Unlock()
	for _, b := range from.Balancers {
		id := b.Port.id()
		again := forward.NewBalancer(b.Target)
		again.Remember(b.Clients)
		p.sockets.balancers[id] = again
		p.sockets.values[key{port: id, part: balancer}] = value{target: describe(b.Target)}
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
func (e *handedState) renumber(numbers map[int]int) {
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

// readState returns what the previous run has handed over, with the file descriptors of this process.
func readState(in *plane.Inherited) (*handedState, error) {
	s := &handedState{}
	if err := json.Unmarshal(in.State, s); err != nil {
		return nil, fmt.Errorf("read the sockets of the previous run: %w", err)
	}
	s.renumber(in.Numbers)
	return s, nil
}

// discard resets the connections of the previous run, which nobody goes on with.
func discard(in *plane.Inherited) error {
	from, err := readState(in)
	if err != nil {
		return err
	}
	for i := range from.Sockets {
		from.Sockets[i].Handed.Discard()
	}
	for i := range from.Closed {
		from.Closed[i].Discard()
	}
	return nil
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
func (p *Plane) adopt(s handedSocket, adopt adoption) bool {
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
	p.ports.adopt(k, s.At)
	p.sockets.open[k], p.sockets.values[k] = l, value{at: s.At, pool: s.Pool}
	return true
}

// adopt records the address of an inherited socket.
func (p *ports) adopt(k key, at netip.AddrPort) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.take(k, at)
}
