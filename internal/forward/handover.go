package forward

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"
)

// Handed is the state of a Listener for the next run of the program: file descriptors, connections and
// flows. It can be encoded as JSON.
type Handed struct {
	Socket int    // that listens; -1: it is closed
	Conns  []Conn `json:",omitempty"`
	Flows  []Flow `json:",omitempty"`
}

// Conn is a connection of a client. One that has no backend yet begins to look for
// one again.
type Conn struct {
	Client   int // the socket to the client
	Remote   int // the socket to the backend; -1: there is none yet
	Peer     netip.AddrPort
	Backend  netip.AddrPort
	Pool     int       `json:",omitempty"`
	Hops     uint8     `json:",omitempty"` // through how many sockets of the Engine the client has come
	Up, Down Way       // to the backend, to the client
	Ends     time.Time // when it ends, if its backend does not return; zero: it does not drain
}

// Way is a direction of a Conn.
type Way struct {
	Done    bool   `json:",omitempty"` // the end was passed on
	Pending []byte `json:",omitempty"` // read, but not written
	Held    int    `json:",omitempty"` // how many bytes are in a pipe
	Pipe    [2]int // its ends, to read and to write, if Held is not 0
}

// Flow is a UDP flow.
type Flow struct {
	Socket  int // to the backend
	Client  netip.AddrPort
	Local   netip.Addr // the address of this host to which the client sends, if the Listener has all
	Backend netip.AddrPort
	Pool    int           `json:",omitempty"`
	Hops    uint8         `json:",omitempty"` // as in Conn
	Idle    time.Duration // since the last datagram
	Port    uint16        `json:",omitempty"` // of the socket, if the Engine counts ports
	Replied bool          `json:",omitempty"` // the backend has sent a datagram
}

// descriptors calls a function with each file descriptor.
func (h *Handed) descriptors(yield func(*int)) {
	if h.Socket >= 0 {
		yield(&h.Socket)
	}
	for i := range h.Conns {
		c := &h.Conns[i]
		yield(&c.Client)
		if c.Remote >= 0 {
			yield(&c.Remote)
		}
		for _, way := range []*Way{&c.Up, &c.Down} {
			if way.Held > 0 {
				yield(&way.Pipe[0])
				yield(&way.Pipe[1])
			}
		}
	}
	for i := range h.Flows {
		yield(&h.Flows[i].Socket)
	}
}

// Descriptors returns all file descriptors.
func (h *Handed) Descriptors() []int {
	var list []int
	h.descriptors(func(fd *int) { list = append(list, *fd) })
	return list
}

// Discard closes the file descriptors, which nobody goes on with. Connections are reset.
func (h *Handed) Discard() {
	for _, fd := range h.Descriptors() {
		reset(fd)
	}
}

// Renumber replaces the file descriptors by those of this process. It returns descriptors to close: they belong to
// connections and flows of which another descriptor was not received.
func (h *Handed) Renumber(numbers map[int]int) (rest []int) {
	if _, is := numbers[h.Socket]; !is {
		h.Socket = -1
	}
	complete := func(part *Handed) bool {
		var have []int
		all := true
		part.descriptors(func(fd *int) {
			if n, is := numbers[*fd]; is {
				have = append(have, n)
			} else {
				all = false
			}
		})
		if !all {
			rest = append(rest, have...)
		}
		return all
	}
	h.Conns = slices.DeleteFunc(h.Conns, func(c Conn) bool { return !complete(&Handed{Socket: -1, Conns: []Conn{c}}) })
	h.Flows = slices.DeleteFunc(h.Flows, func(f Flow) bool { return !complete(&Handed{Socket: -1, Flows: []Flow{f}}) })
	h.descriptors(func(fd *int) { *fd = numbers[*fd] })
	return rest
}

// handover is a system whose sockets another Engine can adopt.
type handover interface {
	// handOver takes the sockets of all Listeners out of the loops. The key nil holds the connections of
	// closed ones.
	handOver(ctx context.Context, open map[server]*Listener) (map[*Listener]*Handed, error)

	// retired returns a server without a socket. It closes the socket and the flows of what was handed over.
	retired(s Spec, h *Handed) adopter
}

// adopter is a server that adopts what belonged to its socket.
type adopter interface {
	server
	adopt(h *Handed)
	retire() // closes the socket; connections go on, flows end
}

// errNoHandover is returned where sockets cannot be handed over.
var errNoHandover = errors.New("sockets cannot be handed over on this system")

// HandOver takes all sockets out of the Engine, so that the next run of the program can adopt them. After that the
// Engine forwards nothing, and Run ends no connection. The result holds the state of each
// Listener; the key nil holds connections of closed Listeners. HandOver is called once, while Run runs.
func (e *Engine) HandOver(ctx context.Context) (map[*Listener]*Handed, error) {
	s, can := e.system.(handover)
	if !can {
		return nil, errNoHandover
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	open := map[server]*Listener{}
	for l := range e.listeners {
		open[l.server] = l
	}
	e.ended = true
	return s.handOver(ctx, open)
}

// Adopt adopts the connections and flows that belonged to the socket in the previous run of the program.
// The Listener was opened with that socket.
func (l *Listener) Adopt(h *Handed) {
	if a, can := l.server.(adopter); can {
		a.adopt(h)
	}
}

// Retire closes the socket of a Listener that can be handed over. Its connections go on without a deadline. UDP flows end.
func (l *Listener) Retire() {
	if a, can := l.server.(adopter); can {
		a.retire()
	}
}

// Retired returns a Listener that was retired in the previous run of the program, with its connections.
func (e *Engine) Retired(s Spec, h *Handed) (*Listener, error) {
	system, can := e.system.(handover)
	if !can {
		return nil, errNoHandover
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended {
		return nil, errEnded
	}
	s.Balancer.subscribe(e)
	server := system.retired(s, h)
	server.adopt(h)
	l := &Listener{engine: e, spec: s, server: server}
	e.listeners[l] = struct{}{}
	return l, nil
}

// Drain adopts the connections of a Listener that is closed, until they have drained. It closes the socket and
// the flows.
func (e *Engine) Drain(b *Balancer, h *Handed) {
	if s, can := e.system.(handover); can {
		b.subscribe(e)
		to := s.retired(Spec{Balancer: b}, h)
		to.close()
		to.adopt(h)
	}
}

// Target returns the target.
func (b *Balancer) Target() *Target { return b.target.Load() }

// Client is the backend of a client by affinity.
type Client struct {
	Addr    netip.Addr
	Backend netip.AddrPort
	Idle    time.Duration // since its last connection
}

// Clients returns which clients the Balancer remembers for affinity, the one that is idle for longest first.
func (b *Balancer) Clients() []Client {
	now := b.now()
	b.affinity.mu.Lock()
	defer b.affinity.mu.Unlock()
	list := make([]Client, 0, len(b.affinity.clients))
	for s := b.affinity.list.Next; s != nil && s != &b.affinity.list; s = s.Next {
		list = append(list, Client{s.Item.client, s.Item.backend, now.Sub(s.Item.used)})
	}
	return list
}

// Remember makes the Balancer remember what Clients of another one returned.
func (b *Balancer) Remember(list []Client) {
	now := b.now()
	for _, c := range list {
		b.affinity.put(c.Addr, c.Backend, now.Add(-c.Idle))
	}
}
