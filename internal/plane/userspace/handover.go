package userspace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/relay"
)

// errEnded is returned for a plan of a plane whose sockets belong to the next run of the program.
var errEnded = errors.New("the sockets belong to the next run of the program")

// runner runs an engine. If another run of the program follows, its listening sockets stay open for that.
type runner struct {
	engine *relay.Engine
	plane  *Plane
	wanted atomic.Bool
	result chan handedOver // has the result when run has ended
}

type handedOver struct {
	plane.Inherited
	err error
}

func newRunner(e *relay.Engine, p *Plane) *runner {
	return &runner{engine: e, plane: p, result: make(chan handedOver, 1)}
}

// handOver implements plane.Opened.HandOver.
func (r *runner) handOver() func(context.Context) (plane.Inherited, error) {
	r.wanted.Store(true)
	return func(ctx context.Context) (plane.Inherited, error) {
		select {
		case out := <-r.result:
			return out.Inherited, out.err
		case <-ctx.Done():
			return plane.Inherited{}, ctx.Err()
		}
	}
}

// run forwards until the context ends. Then connections are reset.
func (r *runner) run(ctx context.Context) error {
	forwarding, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- r.engine.Run(forwarding) }()
	select {
	case err := <-ended:
		r.result <- handedOver{err: err}
		return err
	case <-ctx.Done():
	}
	var out handedOver
	if r.wanted.Load() {
		out.Inherited, out.err = r.plane.leave()
	}
	r.result <- out
	stop()
	return <-ended
}

// leave ends the plane when no write is in progress, and returns its listening sockets and the clients with session
// affinity; nothing before the first write, as rules may lead to sockets of an earlier run.
func (p *Plane) leave() (in plane.Inherited, err error) {
	p.writing.Lock()
	defer p.writing.Unlock()
	p.ended = true
	if !p.sockets.guarded.Load() {
		return in, nil
	}
	if in.Sockets, err = p.sockets.files(); err != nil {
		return in, err
	}
	in.State, err = json.Marshal(p.sockets.clients())
	return in, err
}

// clients returns the clients with session affinity of each port, by the text of its PortID.
func (s *sockets) clients() map[string][]relay.Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string][]relay.Client{}
	for id, b := range s.balancers {
		if clients := b.Clients(); len(clients) > 0 {
			all[id.String()] = clients
		}
	}
	return all
}

// files returns all listening sockets by name.
func (s *sockets) files() (map[string]*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	files := map[string]*os.File{}
	for k, l := range s.open {
		if s.absent[k] != nil {
			continue
		}
		f, err := l.File()
		if err != nil {
			closeAll(files)
			return nil, fmt.Errorf("hand over the listening socket for %s: %w", k, err)
		}
		files[fileName(k, l.Addr())] = f
	}
	return files, nil
}

func closeAll(files map[string]*os.File) {
	for _, f := range files {
		_ = f.Close() // a listening socket has nothing to flush
	}
}

// separator is between the key of a socket and its address in a fileName.
const separator = " at "

// fileName names the socket of a key at an address.
func fileName(k key, at netip.AddrPort) string { return k.String() + separator + at.String() }

// inherit makes the first plan adopt what the previous run of the program has handed over instead of opening sockets
// of its own. Until that plan is written no other socket gets the address of an inherited one: rules lead to it.
func (p *Plane) inherit(in plane.Inherited) error {
	if len(in.Sockets) == 0 {
		return nil
	}
	addrs := map[string]netip.AddrPort{}
	for name := range in.Sockets {
		of, text, _ := strings.Cut(name, separator)
		at, err := netip.ParseAddrPort(text)
		if err != nil {
			return fmt.Errorf("the name of a listening socket of the previous run, %q: %w", name, err)
		}
		addrs[of] = at
	}
	p.ports.inherit(addrs)
	p.sockets.inherited = in.Sockets
	p.sockets.guarded.Store(true)
	return json.Unmarshal(in.State, &p.sockets.remembered)
}

// disown forgets what the previous run has handed over and no plan has adopted.
func (p *Plane) disown() {
	p.ports.inherit(nil)
	p.sockets.mu.Lock()
	defer p.sockets.mu.Unlock()
	closeAll(p.sockets.inherited)
	p.sockets.inherited, p.sockets.remembered = nil, nil
}

// inheritedSocket takes the socket of the previous run for a key; nil: there is none. The caller holds the lock.
func (s *sockets) inheritedSocket(k key, at netip.AddrPort) *os.File {
	name := fileName(k, at)
	f := s.inherited[name]
	delete(s.inherited, name)
	return f
}
