package cluster

import (
	"net/netip"
	"time"
)

// Ejection says which failed connections make a backend leave: connections of so many clients, or so many of one
// client in a row, without a connection that succeeds in between. The zero value never ejects.
type Ejection struct{ Clients, Row uint8 }

// On reports whether backends can be ejected.
func (e Ejection) On() bool { return e != Ejection{} }

// Whole is the share of a backend to which nothing happened.
const Whole = 16

// Share is the part of its connections that a TCP backend of a Service port gets after connections to it failed.
type Share struct {
	Part  uint8     // of Whole; 0: it is ejected, or its trial waits for the outcome of connections
	Since time.Time // of this part
	Next  time.Time // when it is likely to become larger; zero: when a connection succeeds

	// Failures and Clients are the failed connections that ejected it, and how many clients made them.
	Failures, Clients int
}

// ShareKey identifies a TCP backend of a port of a Service.
type ShareKey struct {
	Port    string // its name
	Backend netip.AddrPort
}

// Shares has the backends of a Service whose share is not Whole.
type Shares map[ShareKey]Share
