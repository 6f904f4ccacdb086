// Package bpf balances connections when sockets connect, by programs of cgroup v2 (sock.c). Conn
// writes maps and programs of the kernel, which stay when the process ends.
package bpf

import "errors"

// ErrNotFound is returned by the removal of an entry that does not exist.
var ErrNotFound = errors.New("no such entry")

// ErrFull is returned if a map has no room for another entry.
var ErrFull = errors.New("no room for another entry")

// NoRoom is the error of a Write if the kernel has no memory for an entry, or for a larger map. Steps before it were
// carried out.
type NoRoom struct {
	Step int // its index
	Err  error
}

// Error returns the reason.
func (e *NoRoom) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *NoRoom) Unwrap() error { return e.Err }

// Table is a map that user space writes, or the programs.
type Table uint8

// The tables, in the order in which additions are written.
const (
	Slots Table = iota + 1
	Members
	NodeAddrs
	Frontends
	Programs
)

// tables returns the tables that are maps.
func tables() []Table { return []Table{Slots, Members, NodeAddrs, Frontends} }

// String returns the name of the map in sock.c.
func (t Table) String() string {
	return [...]string{"", "slots", "members", "node_addrs", "frontends", "programs"}[t]
}

// Key identifies an entry of a table.
type Key struct {
	Table Table
	Data  string // encoded as in the map
}

// Entry is an entry of a table.
type Entry struct {
	Key
	Value string // encoded as in the map
}

// Step adds, changes or removes an entry.
type Step struct {
	Entry
	Remove bool
}

// State is the contents of all tables.
type State map[Key]string
