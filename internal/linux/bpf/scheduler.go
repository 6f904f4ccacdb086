package bpf

import "fmt"

// Scheduler is the algorithm by which programs choose a slot, with the values of sock.c.
type Scheduler uint8

// The schedulers.
const (
	ByChance Scheduler = iota // a random slot
	ByHash                    // by a hash of the client's address
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

// Draws is how many slots ByChance and ByHash draw for a connection at most, while new backends pass connections on.
const Draws = 4

// Rehash returns the hash of the next draw of ByHash. Backends keep a connection if the low 8 bits of the hash are
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
