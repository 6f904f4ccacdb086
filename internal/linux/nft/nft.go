// Package nft reads and writes nf_tables over netlink. Tables, chains, rules, sets and
// maps are values; a transaction can be printed, in the language of nft(8), and
// committed. Fake is nf_tables in memory and refuses what the kernel refuses.
//
// The package never runs the program nft.
package nft

import (
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// Family is an nf_tables family.
type Family byte

// The families Sluice uses.
const (
	IP4 Family = unix.NFPROTO_IPV4
	IP6 Family = unix.NFPROTO_IPV6

	// Netdev tables see each packet as a device receives it, of every protocol.
	Netdev Family = unix.NFPROTO_NETDEV
)

// String returns the word nft uses.
func (f Family) String() string {
	switch f {
	case IP4:
		return "ip"
	case IP6:
		return "ip6"
	case Netdev:
		return "netdev"
	}
	return "unknown"
}

// Table names a table.
type Table struct {
	Family Family
	Name   string
}

// String returns the table as nft names it, "ip sluice".
func (t Table) String() string { return t.Family.String() + " " + t.Name }

// Type is the type of one field of a set key or of map data.
type Type byte

// The field types. Addr is an address of the table's family.
const (
	Addr    Type = iota + 1
	Proto        // IANA protocol number
	Port         // transport port, network order
	Index        // 32 bits, host order, as numgen makes them; printed as a ClassID
	ClassID      // 32 bits, network order, printed "major:minor" in hexadecimal (tc(8))
	Verdict      // map data only
	Addr4        // IPv4 address, in a table of any family
	Addr6        // IPv6 address
	Ether        // hardware address of Ethernet
)

// Set defines a set; with Data, a map.
type Set struct {
	Name     string
	Key      []Type
	Data     []Type        // nil: a plain set; Verdict: a verdict map
	Interval bool          // keys may be ranges
	Dynamic  bool          // rules add elements, which time out
	Size     uint32        // the most elements; 0: unlimited. Dynamic sets need a limit.
	Timeout  time.Duration // of elements without one of their own; 0: they need one
}

// Verdicts reports whether the set is a verdict map.
func (s Set) Verdicts() bool { return len(s.Data) == 1 && s.Data[0] == Verdict }

// Hook makes a chain a base chain. Type is "nat" or "filter".
type Hook struct {
	Type     string
	Point    Point
	Priority int
	Device   string // of a netdev table: the chain sees what this device receives, and Point does not matter
}

// Point is a netfilter hook.
type Point uint32

// The hooks Sluice uses, as the kernel numbers them.
const (
	Prerouting  Point = unix.NF_INET_PRE_ROUTING
	Forwarding  Point = unix.NF_INET_FORWARD
	Input       Point = unix.NF_INET_LOCAL_IN
	Output      Point = unix.NF_INET_LOCAL_OUT
	Postrouting Point = unix.NF_INET_POST_ROUTING
)

// String returns the word nft uses.
func (p Point) String() string {
	return map[Point]string{
		Prerouting: "prerouting", Forwarding: "forward", Input: "input", Output: "output", Postrouting: "postrouting",
	}[p]
}

// Chain is a chain with all its rules.
type Chain struct {
	Name  string
	Hook  *Hook // nil: a regular chain
	Rules []Rule
}

// Element is one element. Key, End and Data are the raw bytes of the fields,
// each padded to four bytes, as the kernel keeps them.
type Element struct {
	Key     string // empty: the element for all other keys, which only other programs add
	End     string // interval sets: the last key of the range, inclusive in concatenations, exclusive otherwise
	Data    string // data maps
	Goto    string // verdict maps: the chain to go to
	Comment string // at most MaxComment bytes
}

// id identifies the element in its set.
func (e Element) id() string { return e.Key + e.End }

// MaxComment is the longest comment nft accepts, in bytes.
const MaxComment = 128

// table converts to the library's type.
func (t Table) table() *nftables.Table {
	return &nftables.Table{Name: t.Name, Family: nftables.TableFamily(t.Family)}
}

// set converts to the library's type.
func (s Set) set(t Table) *nftables.Set {
	ns := &nftables.Set{
		Table: t.table(), Name: s.Name, Interval: s.Interval, Dynamic: s.Dynamic,
		HasTimeout: s.Dynamic, Timeout: s.Timeout, Size: s.Size, IsMap: s.Data != nil,
		Concatenation: len(s.Key) > 1, KeyType: datatype(t.Family, s.Key),
	}
	if s.Data != nil {
		ns.DataType = datatype(t.Family, s.Data)
	}
	return ns
}

// definition returns the definition of a set, as nft prints it on one line.
func definition(s *nftables.Set) string {
	text := "type " + s.KeyType.Name
	if s.IsMap {
		text += " : " + s.DataType.Name
	}
	text += ";"
	if s.Interval {
		text += " flags interval;"
	}
	if s.Dynamic {
		text += " flags dynamic,timeout;"
	}
	if s.Timeout > 0 {
		text += " timeout " + seconds(s.Timeout) + ";"
	}
	return text
}

// datatype returns the type of fields in the library.
func datatype(f Family, types []Type) nftables.SetDatatype {
	known := map[Type]nftables.SetDatatype{
		Addr: nftables.TypeIPAddr, Proto: nftables.TypeInetProto, Port: nftables.TypeInetService,
		Index: nftables.TypeClassID, ClassID: nftables.TypeClassID, Verdict: nftables.TypeVerdict,
		Addr4: nftables.TypeIPAddr, Addr6: nftables.TypeIP6Addr, Ether: nftables.TypeEtherAddr,
	}
	if f == IP6 {
		known[Addr] = nftables.TypeIP6Addr
	}
	parts := make([]nftables.SetDatatype, len(types))
	for i, t := range types {
		parts[i] = known[t]
	}
	if len(parts) == 1 {
		return parts[0]
	}
	// At most six fields fit; the keys of the proxy have at most four.
	return nftables.MustConcatSetType(parts...)
}
