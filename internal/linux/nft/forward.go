package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nl"
)

// Device is a network interface.
type Device struct {
	Name  string
	Index int
}

// FromEther matches packets that arrived on Ethernet and whose source hardware address is in the set.
func FromEther(set string) Statement {
	const ethernet = 1 // ARPHRD_ETHER, linux/if_arp.h; nft does not print this match before an Ethernet header
	is := equals("", meta("", expr.MetaKeyIIFTYPE), binary.NativeEndian.AppendUint16(nil, ethernet))
	in := In(set, EtherSource())
	return Statement{in.text, append(is.exprs, in.exprs...)}
}

// EtherSource is the source hardware address, for a key that has nothing else. It needs FromEther before it.
func EtherSource() Field { return payload("ether saddr", expr.PayloadBaseLLHeader, 6, 6) }

// Of matches packets of a family. It is for netdev tables.
func Of(f Family) Statement {
	proto := uint16(unix.ETH_P_IP)
	if f == IP6 {
		proto = unix.ETH_P_IPV6
	}
	return equals("meta protocol "+f.String(), meta("", expr.MetaKeyPROTOCOL), binary.BigEndian.AppendUint16(nil, proto))
}

// NextHeader is the protocol in the network header. In IPv6 this is the first extension header, if there is one.
func NextHeader(f Family) Field {
	if f == IP4 {
		return payload("ip protocol", expr.PayloadBaseNetworkHeader, 9, 1)
	}
	return payload("ip6 nexthdr", expr.PayloadBaseNetworkHeader, 6, 1)
}

// EmbeddedDestination is the destination address of the original packet in an ICMP error.
func EmbeddedDestination(f Family) Field {
	return embedded(f.sourceAt()+Addr.width(f), Addr.width(f))
}

// EmbeddedDestinationPort is the destination port of the original packet in an ICMP error.
func EmbeddedDestinationPort(f Family) Field {
	if f == IP4 {
		return embedded(22, 2)
	}
	return embedded(42, 2)
}

// embedded returns bytes of the original packet in an ICMP error, which begins after the ICMP header of eight bytes.
func embedded(offset, size int) Field {
	offset += 8
	return payload(fmt.Sprintf("@th,%d,%d", 8*offset, 8*size), expr.PayloadBaseTransportHeader, offset, size)
}

// ICMPError matches ICMP errors. In IPv4 it matches all messages except echo requests.
func ICMPError(f Family) Statement {
	protocol, text, op, than := byte(unix.IPPROTO_ICMP), "icmp type != echo-request", expr.CmpOpNeq, byte(8)
	if f == IP6 {
		protocol, text, op, than = unix.IPPROTO_ICMPV6, "icmpv6 type < echo-request", expr.CmpOpLt, 128
	}
	kind := compare(text, payload("", expr.PayloadBaseTransportHeader, 0, 1), op, []byte{than})
	return Statement{text, append(OfProtocol(protocol).exprs, kind.exprs...)}
}

// Unknown matches ICMP errors about connections without a conntrack entry.
func Unknown(f Family) Statement {
	invalid, is := Invalid(), ICMPError(f)
	return Statement{invalid.text + " " + is.text, append(invalid.exprs, is.exprs...)}
}

// Invalid matches packets that conntrack assigns to no connection, and does not translate.
func Invalid() Statement { return Statement{"ct state invalid", state(stateInvalid, expr.CmpOpNeq)} }

// Bits of the state of a connection (NF_CT_STATE_BIT, linux/netfilter/nf_conntrack_common.h).
const stateInvalid, stateNew, stateUntracked = 1 << 0, 1 << 3, 1 << 6

// state compares a bit of the state with 0.
func state(bit uint32, op expr.CmpOp) []expr.Any {
	return masked(&expr.Ct{Key: expr.CtKeySTATE, Register: reg1}, Key{}.Index(bit), op, Key{}.Index(0))
}

// Fragment matches fragments.
func Fragment(f Family) Statement {
	if f == IP6 {
		return equals("ip6 nexthdr ipv6-frag", NextHeader(f), []byte{unix.IPPROTO_FRAGMENT})
	}
	return fragments("!=", expr.CmpOpNeq)
}

// Whole matches IPv4 packets that are not fragments.
func Whole() Statement { return fragments("==", expr.CmpOpEq) }

func fragments(text string, op expr.CmpOp) Statement {
	const moreFragments, offset = 0x2000, 0x1fff
	mask := binary.BigEndian.AppendUint16(nil, moreFragments|offset)
	field := payload("", expr.PayloadBaseNetworkHeader, 6, 2)
	return Statement{"ip frag-off & 0x3fff " + text + " 0", masked(field.load(reg1), mask, op, make([]byte, len(mask)))}
}

// hops returns the name and the offset of the TTL or hop limit.
func hops(f Family) (name string, offset uint32) {
	if f == IP4 {
		return "ip ttl", 8
	}
	return "ip6 hoplimit", 7
}

// HopsAbove matches packets whose TTL or hop limit is greater than n.
func HopsAbove(f Family, n uint8) Statement {
	name, offset := hops(f)
	at := payload("", expr.PayloadBaseNetworkHeader, int(offset), 1)
	return compare(fmt.Sprintf("%s > %d", name, n), at, expr.CmpOpGt, []byte{n})
}

// SetHops sets the TTL or hop limit to n.
func SetHops(f Family, n uint8) Statement {
	name, offset := hops(f)
	write := &expr.Payload{
		OperationType: expr.PayloadWrite, SourceRegister: reg1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 1,
	}
	if f == IP4 {
		write.CsumType, write.CsumOffset = expr.CsumTypeInet, 10
	}
	return Statement{fmt.Sprintf("%s set %d", name, n), []expr.Any{
		&expr.Immediate{Register: reg1, Data: []byte{n}}, write,
	}}
}

// Midstream matches TCP packets without SYN that have no conntrack entry.
func Midstream() Statement {
	const syn = 1 << 1 // TH_SYN
	flags := payload("", expr.PayloadBaseTransportHeader, 13, 1)
	return Statement{"ct state new " + TCP().text + " tcp flags & syn == 0", slices.Concat(
		state(stateNew, expr.CmpOpNeq), TCP().exprs, masked(flags.load(reg1), []byte{syn}, expr.CmpOpEq, []byte{0}))}
}

// TCP matches TCP packets.
func TCP() Statement { return OfProtocol(unix.IPPROTO_TCP) }

// VXLAN matches UDP packets to a port that carry packets of a VXLAN network (RFC 7348, section 5).
func VXLAN(port uint16, network uint32) Statement {
	udp, to := UDP(), equals(fmt.Sprintf("udp dport %d", port), DestinationPort(), Key{}.Port(port))
	identifier := payload("", expr.PayloadBaseTransportHeader, 12, 3)
	of := equals(fmt.Sprintf("@th,96,24 %d", network), identifier, binary.BigEndian.AppendUint32(nil, network)[1:])
	return Statement{to.text + " " + of.text, slices.Concat(udp.exprs, to.exprs, of.exprs)}
}

// Accept accepts the packet.
func Accept() Statement { return verdict("accept", expr.VerdictAccept, "") }

// Forward sends the unchanged packet to the neighbour whose address the map has for the fields. If the map has none,
// the rule does not match. It must be the last statement of a rule in a netdev table.
func Forward(f Family, to Device, neighbours string, fields ...Field) Statement {
	text, exprs := mapped(neighbours, fields)
	return Statement{
		fmt.Sprintf("fwd %s to %s device %q", f, text, to.Name), append(exprs, toDevice(to), &forward{family: f}),
	}
}

// Copy sends a copy of the packet to the neighbour whose address the map has for the fields. If the map has none, the
// rule does not match.
func Copy(to Device, neighbours string, fields ...Field) Statement {
	text, exprs := mapped(neighbours, fields)
	dup := &expr.Dup{RegAddr: reg1, RegDev: deviceRegister, IsRegDevSet: true}
	return Statement{fmt.Sprintf("dup to %s device %q", text, to.Name), append(exprs, toDevice(to), dup)}
}

// To matches packets to an address.
func To(a netip.Addr) Statement {
	f := familyOf(a)
	return equals(fmt.Sprintf("%s daddr %s", f, a), Destination(f), a.AsSlice())
}

// Between matches UDP packets from and to a port.
func Between(port uint16) Statement {
	udp := UDP()
	from := equals(fmt.Sprintf("udp sport %d", port), SourcePort(), Key{}.Port(port))
	to := equals(fmt.Sprintf("udp dport %d", port), DestinationPort(), Key{}.Port(port))
	return Statement{from.text + " " + to.text, slices.Concat(udp.exprs, from.exprs, to.exprs)}
}

// SetSource replaces the source address of the packet, without NAT.
func SetSource(a netip.Addr) Statement {
	f := familyOf(a)
	return setAddress(f, f.sourceAt(), "saddr set "+a.String(), &expr.Immediate{Register: reg1, Data: a.AsSlice()})
}

// SetSourceFrom replaces the source address of the packet by the one that the map has for the fields, without NAT. If
// the map has none, the rule does not match.
func SetSourceFrom(f Family, addresses string, fields ...Field) Statement {
	text, exprs, _ := join(fields)
	return setAddress(f, f.sourceAt(), "saddr set "+text+" map @"+addresses, append(exprs, lookup(addresses, reg1))...)
}

// SetDestination replaces the destination address of the packet, without NAT.
func SetDestination(a netip.Addr) Statement {
	f := familyOf(a)
	return setAddress(f, f.sourceAt()+Addr.width(f), "daddr set "+a.String(),
		&expr.Immediate{Register: reg1, Data: a.AsSlice()})
}

// setAddress writes what the expressions leave in register 1 to an address of the packet, and updates checksums.
func setAddress(f Family, offset int, text string, exprs ...expr.Any) Statement {
	const pseudoHeader = 1 // NFT_PAYLOAD_L4CSUM_PSEUDOHDR, linux/netfilter/nf_tables.h
	write := &expr.Payload{
		OperationType: expr.PayloadWrite, SourceRegister: reg1, Base: expr.PayloadBaseNetworkHeader, Offset: uint32(offset),
		Len: uint32(Addr.width(f)), CsumFlags: pseudoHeader,
	}
	if f == IP4 {
		write.CsumType, write.CsumOffset = expr.CsumTypeInet, 10
	}
	return Statement{f.String() + " " + text, append(exprs, write)}
}

func familyOf(a netip.Addr) Family {
	if a.Is6() {
		return IP6
	}
	return IP4
}

// ForHost matches packets to the hardware address of this host.
func ForHost() Statement {
	return equals("meta pkttype host", meta("", expr.MetaKeyPKTTYPE), []byte{unix.PACKET_HOST})
}

// CopyToDestination sends a copy of the packet to its destination, which stays the next hop if the copy gets another
// destination later. Conntrack does not track the copy.
func CopyToDestination(f Family) Statement {
	to := Destination(f)
	return Statement{"dup to " + to.text, []expr.Any{to.load(reg1), &expr.Dup{RegAddr: reg1}}}
}

// Tracked matches packets that conntrack tracks, or would if they were valid.
func Tracked() Statement {
	return Statement{"ct state & untracked == 0", state(stateUntracked, expr.CmpOpEq)}
}

// deviceRegister holds the index of the device. Register 1 holds the address.
const deviceRegister = unix.NFT_REG_2

func toDevice(d Device) expr.Any {
	return &expr.Immediate{Register: deviceRegister, Data: Key{}.Index(uint32(d.Index))}
}

// forward is the expression "fwd", which the nftables library lacks.
type forward struct {
	expr.Any

	family Family
}

// attributes encodes the expression.
func (fwd *forward) attributes() []byte {
	const sregDev, sregAddr, nfproto = 1, 2, 3 // NFTA_FWD_*, linux/netfilter/nf_tables.h
	b := nl.AppendString(nil, unix.NFTA_EXPR_NAME, "fwd")
	return nl.AppendNested(b, unix.NFTA_EXPR_DATA, func(to []byte) []byte {
		to = nl.AppendUint32(to, sregDev, deviceRegister)
		to = nl.AppendUint32(to, sregAddr, reg1)
		return nl.AppendUint32(to, nfproto, uint32(fwd.family))
	})
}
