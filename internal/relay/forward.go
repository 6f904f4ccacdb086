// Package relay balances connections in this process: it accepts a connection or receives a
// datagram, chooses a backend, dials it and copies bytes in both directions. It needs no privilege
// and no feature of a kernel, and does not depend on Kubernetes.
//
// An Engine has Listeners. Each sends its clients to the backends of a Balancer, which several Listeners may share.
package relay

import (
	"log/slog"
	"net/netip"
	"os"
	"time"
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
