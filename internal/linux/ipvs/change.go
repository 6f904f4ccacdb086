package ipvs

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Settings are how a virtual server chooses destinations.
type Settings struct {
	Scheduler string
	Affinity  time.Duration // a client keeps its destination for this long; 0: not. Whole seconds
	Ports     bool          // the schedulers mh and sh hash the client's port as well
}

// Destination is a destination of a virtual server (a "real server").
type Destination struct {
	At     netip.AddrPort
	Weight uint32 // 0: it gets no new connections

	// Active and Inactive are its connections: established ones, and all others, such as
	// those that ended recently. A Change ignores them.
	Active, Inactive int
}

// Listed is a virtual server in the kernel.
type Listed struct {
	Server
	Settings
	Stats
}

// Stats count since the virtual server was added. The kernel updates them every 2 seconds. They are 0 before Linux 4.1.
type Stats struct {
	Connections    uint64
	Received, Sent uint64 // bytes from clients and to them
}

// Op is what a Command does.
type Op uint8

// The operations. Each has no effect, and is no error, if it is already done.
const (
	Set        Op = iota // adds a virtual server or changes its settings
	Delete               // deletes a virtual server with its destinations
	SetDest              // adds a destination or changes its weight
	DeleteDest           // deletes a destination
)

// Command changes a virtual server.
type Command struct {
	Op       Op
	Server   Server
	Settings Settings    // of Set
	Dest     Destination // of SetDest and DeleteDest

	// Exists says that what a Set or SetDest names probably exists, so that it is edited first,
	// and added only if it does not.
	Exists bool
}

// String returns the change as a line for ipvsadm --restore. A server or destination whose
// settings change is printed like a new one.
func (c Command) String() string {
	at := c.Server.argument()
	server, dest := "-A ", "-a "
	if c.Exists {
		server, dest = "-E ", "-e "
	}
	switch c.Op {
	case Set:
		return server + at + c.Settings.arguments()
	case Delete:
		return "-D " + at
	case SetDest:
		return fmt.Sprintf("%s%s -r %s -m -w %d", dest, at, c.Dest.At, c.Dest.Weight)
	default:
		return fmt.Sprintf("-d %s -r %s", at, c.Dest.At)
	}
}

func (s Server) argument() string {
	if s.Mark != 0 {
		if s.Addr.Is4() {
			return fmt.Sprintf("-f %d", s.Mark)
		}
		return fmt.Sprintf("-f %d -6", s.Mark)
	}
	protocol, at, _ := strings.Cut(s.String(), " ")
	return map[string]string{"tcp": "-t ", "udp": "-u ", "sctp": "--sctp-service "}[protocol] + at
}

func (s Settings) arguments() string {
	text := " -s " + s.Scheduler
	if s.Affinity > 0 {
		text += fmt.Sprintf(" -p %d", int(s.Affinity/time.Second))
	}
	if s.Ports {
		text += " -b " + s.Scheduler + "-port"
	}
	return text
}

// Timeouts are how long entries of idle connections are kept; 0: the kernel's own.
type Timeouts struct{ TCP, TCPFin, UDP time.Duration }
