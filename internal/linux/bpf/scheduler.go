package bpf

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net/netip"
)

// Scheduler is the algorithm by which programs choose a slot, with the values of sock.c.
type Scheduler uint8

// The schedulers.
const (
	ByChance Scheduler = iota // a random slot
	ByHash                    // by a hash of the client's address, or of the name of the node
	ByLoad                    // of eight slots, the one with the fewest open connections for its weight
)

// String completes "chosen".
func (s Scheduler) String() string {
	switch s {
	case ByChance:
		return "by chance"
	case ByHash:
		return "by hash"
	case ByLoad:
		return "by load"
	}
	return fmt.Sprint("scheduler ", uint8(s))
}

// PodHash returns the hash by which ByHash chooses for a pod: the slot is the hash modulo the number of slots.
func PodHash(a netip.Addr) uint32 {
	b, h := a.As16(), uint32(0)
	for i := 0; i < len(b); i += 4 {
		h = mix(h ^ binary.BigEndian.Uint32(b[i:]))
	}
	return h
}

// NodeHash returns the same hash for processes in the network of a node.
func NodeHash(name string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name)) // never fails
	return mix(h.Sum32())
}

// Draws is how many slots ByChance and ByHash draw for a connection at most, while new backends pass connections on.
const Draws = 4

// Rehash returns the hash of the next draw of ByHash. Backends keep a connection if the upper 8 bits of the hash are
// below their part (Conn.Parts).
func Rehash(hash uint32) uint32 { return mix(hash + 1) }

// Compared is how many backends ByLoad compares for a connection at most: those from a random one on.
const Compared = 8

// mix is the last step of MurmurHash3.
func mix(h uint32) uint32 {
	h = (h ^ h>>16) * 0x85ebca6b
	h = (h ^ h>>13) * 0xc2b2ae35
	return h ^ h>>16
}
