// Package control is the door to a running daemon: an abstract unix socket of
// the network namespace that it serves, and HTTP over it. Having the socket is
// also the lock: one daemon for a namespace. docs/decisions/0006 says why.
package control

import (
	"os"
	"strconv"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/unixsock"
)

// name is that of the socket.
const name = "@sluice-proxy/sluice"

// Options for Listen and Dial.
type Options struct {
	NetNS int // file descriptor of a network namespace; 0: the current one
}

func (o Options) socket() unixsock.Options {
	return unixsock.Options{Name: name, NetNS: o.NetNS}
}

// Identity is what a daemon says of itself when another finds the place taken.
type Identity struct {
	PID     int       `json:"pid"` // as it sees itself
	Version string    `json:"version"`
	Host    string    `json:"host"` // name of the host
	Mode    string    `json:"mode"`
	Since   time.Time `json:"since"`
}

const (
	identityPath  = "/identity"
	versionHeader = "Sluice-Version"
)

// overflow stands for every user that this user namespace has no number for
// (user_namespaces(7)).
const overflow = 65534

// trusted reports whether a peer may ask, or be asked: root or our own user.
// One without a number here is neither, also if we are nobody ourselves.
func trusted(p unixsock.Peer) bool {
	return p.UID == 0 || p.UID == os.Geteuid() && p.UID != overflow
}

// pidText names a process; 0 is one in another PID namespace.
func pidText(pid int) string {
	if pid == 0 {
		return "pid unknown, as it is in another PID namespace"
	}
	return "pid " + strconv.Itoa(pid)
}
