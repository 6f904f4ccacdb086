// Package relay balances connections in this process: it accepts a connection or receives a
// datagram, chooses a backend, dials it and copies bytes in both directions. It needs no privilege
// and no feature of a kernel, and does not depend on Kubernetes.
//
// An Engine has Listeners. Each sends its clients to the backends of a Balancer, which several Listeners may share.
package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/internal/fair"
)

// Protocol is a transport protocol, by its IP protocol number.
type Protocol uint8

// The protocols.
const (
	TCP Protocol = 6
	UDP Protocol = 17
)

// Scheduler is an algorithm that chooses a backend for a new connection. All respect weights, and
// none chooses a backend of weight 0.
type Scheduler uint8

// The schedulers.
const (
	RoundRobin       Scheduler = iota // each in turn, smoothly by weight
	LeastConnections                  // the fewest open connections for its weight
	SourceHash                        // by a hash of the address of the client, as in other planes (package slots)
)

// Backend is where connections can go.
type Backend struct {
	Addr   netip.AddrPort
	Weight uint16
}

// Target holds the backends of a Balancer and how it chooses among them. It does not change after it was set.
type Target struct {
	Scheduler Scheduler

	// Affinity, if not 0, keeps a client address on its backend until the client has made no new connection for this long.
	Affinity time.Duration

	// Pools are lists of backends, without duplicates. Each connection uses one of them.
	Pools [][]Backend

	// ProxyHeader sends a PROXY protocol header of version 2 to TCP backends before the bytes of the client.
	ProxyHeader bool
}

// Admission is the decision about a client.
type Admission struct {
	Refused bool // the connection is reset, or the datagram dropped
	Pool    int  // index in Target.Pools

	// Unless, if not nil, returns true for destinations at which connections of TCP are admitted although
	// Refused is true. A destination is the address to which the client connected, before rules of netfilter changed
	// it. It has no effect on systems other than Linux.
	Unless func(destination netip.AddrPort) bool
}

// Spec describes a Listener.
type Spec struct {
	Protocol Protocol
	Addr     netip.AddrPort // port 0: any free port
	Balancer *Balancer

	// Admit decides about each new client. It must return at once. Nil: pool 0 for all.
	Admit func(client netip.Addr) Admission

	// Inherited is a listening socket that a previous run of the program opened for Addr. If nil, the Engine opens one.
	// The Engine closes it. Only Linux has it, as Listener.File.
	Inherited *os.File
}

// Options for an Engine. A field that is zero has the default in parentheses.
type Options struct {
	NetNS int // file descriptor of the network namespace of all sockets; 0: of the process
	Log   *slog.Logger

	// Attempts are how long each attempt to reach a backend may take; the next one uses another
	// backend if there is one (250 ms, 500 ms, 1 s, 2 s).
	Attempts []time.Duration

	// Drain is how long connections may continue when their backend has left all pools of its Balancer, or their
	// Listener is closed (1 minute).
	Drain time.Duration

	// UDPTimeout is how long a flow may be idle (1 minute).
	UDPTimeout time.Duration

	// MaxConnections and MaxFlows limit open TCP connections and UDP flows; by default
	// they follow the limit of file descriptors.
	MaxConnections, MaxFlows int

	// MaxListeners limits Listeners, so that file descriptors remain for connections (half of the limit of file
	// descriptors).
	MaxListeners int
}

// Counts are the counters of a Balancer since it was made, except for Open.
type Counts struct {
	Open        int64 // connections and flows at this moment
	Connections int64 // that were accepted, and flows that began
	Received    int64 // bytes from clients
	Sent        int64 // bytes to clients
	Retries     int64 // attempts that failed and were followed by another one
	Failures    int64 // connections for which no attempt succeeded
}

// Engine forwards the connections of its Listeners. All methods are safe for concurrent use.
type Engine struct {
	options     Options
	connections *fair.Shares
	flows       *fair.Shares
	remembered  quota // clients of affinity
	files       int   // the limit of file descriptors, by which that of connections follows the Listeners; 0: it is fixed
	start       time.Time
	refused     map[string]*atomic.Int64 // by reason
	unreported  atomic.Int64
	hops        hops
	system      system

	mu        sync.Mutex
	listeners map[*Listener]struct{}
	ended     bool
}

// system runs the sockets of an Engine.
type system interface {
	// listen opens a socket, which accepts once run is called.
	listen(s Spec) (server, error)

	// run blocks until the context ends. Then it closes all sockets and returns.
	run(ctx context.Context) error

	// left starts to drain connections to backends that have left all pools of a Balancer.
	left(b *Balancer, gone []netip.AddrPort)
}

// server is the socket of a Listener. Any goroutine may call it.
type server interface {
	addr() netip.AddrPort
	set(s *settings)
	close() // it accepts no new connections, and existing ones drain
}

// settings decide about new connections of a Listener.
type settings struct {
	balancer *Balancer
	admit    func(client netip.Addr) Admission
}

// settings returns the first settings of a Listener.
func (s Spec) settings() *settings { return &settings{balancer: s.Balancer, admit: s.Admit} }

// admission returns the decision about a client.
func (s *settings) admission(client netip.Addr) Admission {
	if s.admit == nil {
		return Admission{}
	}
	return s.admit(client)
}

// The reasons why an Engine refuses new work.
const (
	reasonFiles       = "file descriptors"
	reasonConnections = "connections"
	reasonFlows       = "flows"
	reasonPorts       = "ports"
	reasonMemory      = "memory"
	reasonLoop        = "loop" // the client has come through maxHops sockets
)

// shortage returns the reason if an error means that this host has run out of a resource; "" if it does not.
func shortage(err error) string {
	switch {
	case is(err, syscall.EMFILE), is(err, syscall.ENFILE), is(err, syscall.ENOSPC):
		return reasonFiles
	case is(err, syscall.EADDRNOTAVAIL), is(err, syscall.EADDRINUSE), is(err, syscall.EAGAIN):
		return reasonPorts
	case is(err, syscall.ENOMEM), is(err, syscall.ENOBUFS):
		return reasonMemory
	}
	return ""
}

// Stats are the counters and limits of an Engine.
type Stats struct {
	Connections, Flows       int64            // open now
	MaxConnections, MaxFlows int64            // the limits of them
	Refused                  map[string]int64 // since the start, by reason; all reasons are there

	// Unreported counts refused datagrams for which the client got no ICMP error: the program is not allowed to send ICMP
	// errors, the system does not support it, or there were too many.
	Unreported int64
}

// New returns an Engine. Its Listeners accept once Run is called.
func New(o Options) (*Engine, error) { return newEngine(o, newSystem) }

func newEngine(o Options, newSystem func(*Engine) (system, error)) (*Engine, error) {
	e := &Engine{listeners: map[*Listener]struct{}{}, start: time.Now(), hops: hops{from: map[source]hop{}}}
	e.refused = map[string]*atomic.Int64{
		reasonFiles: {}, reasonConnections: {}, reasonFlows: {}, reasonPorts: {}, reasonMemory: {}, reasonLoop: {},
	}
	files := fileLimit()
	if o.MaxConnections == 0 {
		e.files = files
	}
	o = o.withDefaults(files)
	e.options = o
	e.connections = fair.New(fair.Options{Limit: int64(o.MaxConnections), Idle: int64(idleConnection)})
	e.flows = fair.New(fair.Options{Limit: int64(o.MaxFlows), Idle: int64(o.UDPTimeout / idleFraction)})
	e.remembered.limit = maxRemembered
	var err error
	e.system, err = newSystem(e)
	return e, err
}

// maxConnections returns the default limit of connections, for a limit of file descriptors and the number that flows
// and Listeners may use. A connection has two. Connections leave some to pipes and to the rest of the program: without
// file descriptors it could not work, and would refuse all clients alike.
func maxConnections(files, others int) int {
	pipes, program := min(files/8, 1024), max(files/16, 32)
	return max(min(files/4*3, files-others-pipes-program)/2, files/16)
}

// withDefaults returns options without zero fields, for a limit of file descriptors. A connection
// has two of them, a flow one. Connections get at most three quarters, flows at most one eighth; the rest is for
// listeners, pipes and the rest of the program.
func (o Options) withDefaults(files int) Options {
	if len(o.Attempts) == 0 {
		o.Attempts = []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second}
	}
	o.Drain = cmp.Or(o.Drain, time.Minute)
	o.UDPTimeout = cmp.Or(o.UDPTimeout, time.Minute)
	o.MaxFlows = cmp.Or(o.MaxFlows, maxFlows(o.NetNS, files))
	o.MaxConnections = cmp.Or(o.MaxConnections, maxConnections(files, o.MaxFlows))
	o.MaxListeners = cmp.Or(o.MaxListeners, maxListeners(files))
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return o
}

// idleConnection is how long a connection must be unused to end for one of another client that has no more.
const idleConnection = 5 * time.Minute

// acceptPause is how long a Listener waits when the kernel has no resources for it.
const acceptPause = 50 * time.Millisecond

// errEnded is returned for a Listener of an Engine that has ended.
var errEnded = errors.New("the engine has ended")

// errListeners is returned for a Listener beyond Options.MaxListeners.
var errListeners = errors.New("there are too many listening sockets for the limit of open files (nofile), " +
	"as half is for connections")

// Listen opens a Listener, or adopts an inherited one.
func (e *Engine) Listen(s Spec) (*Listener, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended {
		return nil, errEnded
	}
	if len(e.listeners) >= e.options.MaxListeners {
		return nil, fmt.Errorf("%w (%d)", errListeners, e.options.MaxListeners)
	}
	l := &Listener{engine: e}
	s.Balancer.subscribe(e)
	var err error
	if l.server, err = e.system.listen(s); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", s.Addr, err)
	}
	e.listeners[l] = struct{}{}
	e.fit()
	return l, nil
}

// fit makes the limit of connections follow the number of Listeners. The caller holds the lock.
func (e *Engine) fit() {
	if e.files > 0 {
		e.connections.Resize(int64(maxConnections(e.files, e.options.MaxFlows+len(e.listeners))))
	}
}

// Run forwards until the context ends. Then it resets the connections that are left and closes all
// Listeners. It is called once.
func (e *Engine) Run(ctx context.Context) error {
	err := e.system.run(ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended = true
	clear(e.listeners)
	return err
}

// Discard closes an Engine and its Listeners in place of Run.
func (e *Engine) Discard() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return e.Run(ctx)
}

// Stats returns the current counters and limits.
func (e *Engine) Stats() Stats {
	s := Stats{Refused: map[string]int64{}, Unreported: e.unreported.Load()}
	s.Connections, s.MaxConnections = e.connections.Count()
	s.Flows, s.MaxFlows = e.flows.Count()
	for reason, counter := range e.refused {
		s.Refused[reason] = counter.Load()
	}
	return s
}

// refuse counts that new work was refused for a reason.
func (e *Engine) refuse(reason string) { e.refused[reason].Add(1) }

// Listener is an address whose clients reach the backends of a Balancer.
type Listener struct {
	engine *Engine
	server server
}

// Addr returns the address, with the port that was chosen if Spec.Addr had none.
func (l *Listener) Addr() netip.AddrPort { return l.server.addr() }

// Set changes the Balancer and the admission of new connections. Existing connections keep their backends.
func (l *Listener) Set(b *Balancer, admit func(client netip.Addr) Admission) {
	b.subscribe(l.engine)
	l.server.set(&settings{balancer: b, admit: admit})
}

// Close stops accepting connections. Existing ones drain.
func (l *Listener) Close() {
	l.engine.mu.Lock()
	_, open := l.engine.listeners[l]
	delete(l.engine.listeners, l)
	l.engine.fit()
	l.engine.mu.Unlock()
	if open {
		l.server.close()
	}
}

// errNoHandover is returned where sockets cannot be handed over.
var errNoHandover = errors.New("sockets cannot be handed over on this system")

// File returns a duplicate of the listening socket, which stays open when the Engine ends, for Spec.Inherited of
// another Engine. The caller closes it. Only Linux has it.
func (l *Listener) File() (*os.File, error) {
	s, can := l.server.(interface{ file() (*os.File, error) })
	if !can {
		return nil, errNoHandover
	}
	return s.file()
}
