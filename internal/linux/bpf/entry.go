package bpf

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"

	"github.com/sluice-proxy/sluice/internal/linux/nl"
)

// Clients is a group of clients. A frontend may have a different pool for each group.
type Clients uint8

// The groups of clients with sockets on a node.
const (
	OfPods Clients = iota
	OfNode
)

// String completes "for".
func (c Clients) String() string { return [...]string{"pods", "the node"}[c] }

// Pool identifies a list of backends. Pools of the same Service port differ in the last byte only.
type Pool [16]byte

// String returns a short form: the first four bytes and the last one.
func (p Pool) String() string { return hex.EncodeToString(p[:4]) + "/" + hex.EncodeToString(p[15:]) }

// Frontend is the pool of an address and port of a Service, for one group of clients.
type Frontend struct {
	At       netip.AddrPort // with the unspecified address: a NodePort
	Protocol uint8
	Clients  Clients
	Pool     Pool
	Count    int // number of slots of the pool

	Scheduler Scheduler
	SlowStart bool // a new backend gets a part of its share (Conn.Ramp)
	// NotLocal has the last bits of the addresses that no backend on this node has (function NotLocal); 0 makes programs
	// search for every client.
	NotLocal uint64
}

// NotLocal returns the set of the last 6 bits of addresses, bit n for the value n, that no address in a list ends with.
// Programs search for a client with other bits among the backends of a pool.
func NotLocal(local []netip.Addr) uint64 {
	set := ^uint64(0)
	for _, a := range local {
		set &^= 1 << (a.As16()[15] & 63)
	}
	return set
}

// Entry returns the encoded frontend.
func (f Frontend) Entry() Entry {
	k := append(endpoint(f.At)[:18], f.Protocol, byte(f.Clients))
	v := append(append([]byte{}, f.Pool[:]...), native32(uint32(f.Count))...)
	choice := []byte{byte(f.Scheduler), 0, 0, 0}
	if f.SlowStart {
		choice[1] = 1
	}
	return entry(Frontends, k, append(append(v, choice...), native64(f.NotLocal)...))
}

// Slot is a numbered backend of a pool. A backend may have several slots.
type Slot struct {
	Pool    Pool
	Index   int
	Backend netip.AddrPort
	Weight  uint16 // for ByLoad
}

// Entry returns the encoded slot.
func (s Slot) Entry() Entry {
	return entry(Slots, append(append([]byte{}, s.Pool[:]...), native32(uint32(s.Index))...),
		append(endpoint(s.Backend), native32(uint32(s.Weight))...))
}

// Member records that a pool contains a backend, for sockets and clients that chose the backend before. A Member with
// port 0 records that a backend with this address may be on this node.
type Member struct {
	Pool    Pool
	Backend netip.AddrPort
}

// Entry returns the encoded member.
func (m Member) Entry() Entry {
	return entry(Members, append(append([]byte{}, m.Pool[:]...), endpoint(m.Backend)...), native32(1))
}

// NodeAddr returns the entry of an address that serves NodePorts.
func NodeAddr(a netip.Addr) Entry { return entry(NodeAddrs, address(a), native32(1)) }

func entry(t Table, k, v []byte) Entry { return Entry{Key{t, string(k)}, string(v)} }

func address(a netip.Addr) []byte {
	b := a.As16()
	return b[:]
}

func endpoint(at netip.AddrPort) []byte {
	return append(binary.BigEndian.AppendUint16(address(at.Addr()), at.Port()), 0, 0)
}

func native32(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
func native64(n uint64) []byte { return binary.NativeEndian.AppendUint64(nil, n) }

// String describes an entry on one line.
func (e Entry) String() string {
	k, v := e.Key.String(), []byte(e.Value)
	switch {
	case len(v) == 0:
		return k
	case e.Table == Slots:
		return k + " -> " + endpointIn(v).String() + weightIn(v)
	case e.Table == Frontends:
		return fmt.Sprintf("%s -> pool %s of %d%s", k, Pool(v[:16]), binary.NativeEndian.Uint32(v[16:]), choice(v[20:]))
	case e.Table == Programs:
		return k + " " + e.Value
	}
	return k
}

func weightIn(slot []byte) string {
	if w := binary.NativeEndian.Uint32(slot[20:]); w != 1 {
		return fmt.Sprint(" weight ", w)
	}
	return ""
}

// choice returns the scheduler and slow start of a frontend as text.
func choice(v []byte) string {
	text := ""
	if s := Scheduler(v[0]); s != ByChance {
		text = " " + s.String()
	}
	if v[1] != 0 {
		text += " with slow start"
	}
	return text
}

// String describes a key.
func (k Key) String() string {
	d := []byte(k.Data)
	switch k.Table {
	case Slots:
		return fmt.Sprintf("slots %s %d", Pool(d[:16]), binary.NativeEndian.Uint32(d[16:]))
	case Members:
		return fmt.Sprintf("members %s %s", Pool(d[:16]), endpointIn(d[16:]))
	case NodeAddrs:
		return "node_addrs " + addressIn(d).String()
	case Frontends:
		return fmt.Sprintf("frontends %s/%s for %s", endpointIn(d), nl.ProtocolName(d[18]), Clients(d[19]))
	default:
		return k.Table.String()
	}
}

func addressIn(b []byte) netip.Addr { return netip.AddrFrom16([16]byte(b[:16])).Unmap() }

func endpointIn(b []byte) netip.AddrPort {
	return netip.AddrPortFrom(addressIn(b), binary.BigEndian.Uint16(b[16:]))
}
