// Package bpf balances connections when sockets connect, by programs of cgroup v2 (sock.c). Conn
// has the maps and programs of the kernel, which stay when the process ends; Fake is the same in memory.
package bpf

import "errors"

// ErrNotFound is the error of the removal of an entry that is not there.
var ErrNotFound = errors.New("no such entry")

// ErrFull is the error of an entry for which a map has no room.
var ErrFull = errors.New("no room for another entry")

//go:generate ../../../hack/bpf.sh

// Table is a map that user space writes, or the programs.
type Table uint8

// The tables, in the order in which additions are written.
const (
	Slots Table = iota + 1
	Members
	PodPrefixes
	NodeAddrs
	NodePorts
	Frontends
	Programs
)

// tables returns those that are maps.
func tables() []Table { return []Table{Slots, Members, PodPrefixes, NodeAddrs, NodePorts, Frontends} }

// String returns the name of the map in sock.c.
func (t Table) String() string {
	return [...]string{"", "slots", "members", "pod_prefixes", "node_addrs", "node_ports", "frontends", "programs"}[t]
}

// Where says in which network namespaces UDP sockets are balanced when they connect: those in which they can be destroyed
// when their backend is gone.
type Where uint32

// The namespaces, by the numbers of sock.c.
const (
	Nowhere Where = iota
	OnNode
	Everywhere
)

// Key identifies an entry of a table.
type Key struct {
	Table Table
	Data  string // as the map has it
}

// Entry is an entry of a table.
type Entry struct {
	Key
	Value string // as the map has it
}

// Step adds, changes or removes an entry.
type Step struct {
	Entry
	Remove bool
}

// State is all that the tables hold.
type State map[Key]string
