// Package control lets commands ask a running daemon, over HTTP, and keeps a
// second daemon from the same rules. The daemon holds a lock of the network
// namespace that it serves (package netlock). It has no listener: a command
// listens itself and invites the holder of the lock to connect, which only a
// process with CAP_NET_ADMIN over the namespace can do. The reasons are in
// docs/decisions/0016-the-lock-of-a-network-namespace.md.
package control

import (
	"strconv"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/netlock"
	"github.com/sluice-proxy/sluice/internal/kernel/unixsock"
)

// Options for Listen and Dial.
type Options struct {
	NetNS int // file descriptor of a network namespace; 0: the current one

	// MaxConns is the most connections that Serve keeps; a further one closes the
	// one that was silent the longest (package connlimit). 0: any number.
	MaxConns int
}

func (o Options) lock() netlock.Options { return netlock.Options{NetNS: o.NetNS} }

// Identity describes a daemon to another one that finds the lock held.
type Identity struct {
	PID     int       `json:"pid"` // in its own PID namespace
	Version string    `json:"version"`
	Host    string    `json:"host"` // name of the host
	Mode    string    `json:"mode"`
	Since   time.Time `json:"since"`
}

const (
	identityPath  = "/identity"
	versionHeader = "Sluice-Version"
)

// trusted reports whether a peer is root of this user namespace. A user that
// this namespace has no number for is 65534 here, also root of another one.
func trusted(p unixsock.Peer) bool { return p.UID == 0 }

// pidText names a process; 0 is one in another PID namespace.
func pidText(pid int) string {
	if pid == 0 {
		return "pid unknown, as it is in another PID namespace"
	}
	return "pid " + strconv.Itoa(pid)
}
