package conntrack

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"time"

	uapi "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nl"
)

// Attribute types of nfnetlink_conntrack.h that package uapi lacks.
const (
	ctaTupleZone = 3

	ctaFilter      = 25
	ctaFilterOrig  = 1
	ctaFilterReply = 2

	ctaStatusMask = 26
)

const nfgenHeaderLen = 4

// Bits of ctaFilterOrig and ctaFilterReply: the fields that a filter compares.
const (
	filterSrcAddr = 1 << 0 // the destination has the next bit
	filterProto   = 1 << 3
	filterSrcPort = 1 << 4 // as above
)

var errShort = errors.New("conntrack message is truncated")

// header returns the nfgenmsg with which every conntrack message begins.
func header(f Family) []byte {
	return []byte{map[Family]byte{IPv4: unix.AF_INET, IPv6: unix.AF_INET6}[f], 0, 0, 0}
}

// tuple is one direction of a flow.
type tuple struct {
	protocol uint8
	src, dst netip.AddrPort
}

// append encodes the tuple, and returns the bits of the fields that it has. It omits invalid addresses and ports of 0,
// as filters need.
func (t tuple) append(to []byte, typ uint16) (_ []byte, fields uint32) {
	var addrs, ports []byte
	for i, end := range []netip.AddrPort{t.src, t.dst} { // the numbers of the destination follow those of the source
		family := uint16(uapi.CTA_IP_V4_SRC)
		if end.Addr().Is6() {
			family = uapi.CTA_IP_V6_SRC
		}
		if end.Addr().IsValid() {
			addrs, fields = nl.Append(addrs, family+uint16(i), end.Addr().AsSlice()), fields|filterSrcAddr<<i
		}
		if end.Port() != 0 {
			ports = nl.AppendUint16(ports, uapi.CTA_PROTO_SRC_PORT+uint16(i), end.Port())
			fields |= filterSrcPort << i
		}
	}
	if t.protocol != 0 {
		fields |= filterProto
	}
	return nl.AppendNested(to, typ, func(to []byte) []byte {
		if len(addrs) > 0 {
			to = nl.AppendNested(to, uapi.CTA_TUPLE_IP, func(to []byte) []byte { return append(to, addrs...) })
		}
		if t.protocol == 0 {
			return to
		}
		return nl.AppendNested(to, uapi.CTA_TUPLE_PROTO, func(to []byte) []byte {
			return append(nl.AppendUint8(to, uapi.CTA_PROTO_NUM, t.protocol), ports...)
		})
	}), fields
}

// encodeFilter encodes a filter for the kernel. Kernels before 5.8 ignore the attribute and send all entries of the
// family; kernels before 5.18 ignore the status.
//
// A filter for IPv6 has ports only: kernels up to 6.18 at least invert the comparison of addresses, and would omit
// exactly the matching entries (ctnetlink_filter_match_tuple uses ipv6_addr_cmp as a test of equality). A filter for
// all protocols has addresses only. A filter for both families has the status only, because kernels reject tuples
// without a family.
func encodeFilter(f Filter) []byte {
	end := func(at netip.AddrPort) netip.AddrPort {
		if f.Family == IPv6 {
			at = netip.AddrPortFrom(netip.Addr{}, at.Port())
		}
		if f.Protocol == 0 {
			at = netip.AddrPortFrom(at.Addr(), 0)
		}
		return at
	}
	orig := tuple{protocol: f.Protocol, dst: end(f.OrigDst)}
	reply := tuple{src: end(f.ReplySrc)}
	if reply != (tuple{}) {
		reply.protocol = f.Protocol
	}
	to, flags := header(f.Family), []byte(nil)
	if f.Family == 0 {
		orig, reply = tuple{}, tuple{}
	}
	for _, side := range []struct {
		tuple      tuple
		typ, flags uint16
	}{{orig, uapi.CTA_TUPLE_ORIG, ctaFilterOrig}, {reply, uapi.CTA_TUPLE_REPLY, ctaFilterReply}} {
		if with, fields := side.tuple.append(to, side.typ); fields != 0 {
			to, flags = with, nl.Append(flags, side.flags, binary.NativeEndian.AppendUint32(nil, fields))
		}
	}
	if f.Unanswered {
		to = nl.AppendUint32(to, uapi.CTA_STATUS, 0)
		to = nl.AppendUint32(to, ctaStatusMask, uint32(Answered))
	}
	if len(flags) == 0 {
		return to
	}
	return nl.AppendNested(to, ctaFilter, func(to []byte) []byte { return append(to, flags...) })
}

// encodeKey encodes the addresses of the first packet, the zone and the ID of an entry. The ID protects a newer entry
// with the same addresses from deletion.
func encodeKey(e Entry) []byte {
	to, _ := tuple{e.Protocol, e.OrigSrc, e.OrigDst}.append(header(e.Family()), uapi.CTA_TUPLE_ORIG)
	if e.Zone != 0 {
		to = nl.AppendUint16(to, uapi.CTA_ZONE, e.Zone)
	}
	if e.ID != 0 {
		to = nl.AppendUint32(to, uapi.CTA_ID, e.ID)
	}
	return to
}

// decode decodes the entry in a message of a listing or an event.
func decode(b []byte) (Entry, error) {
	if len(b) < nfgenHeaderLen {
		return Entry{}, errShort
	}
	var e Entry
	err := nl.Walk(b[nfgenHeaderLen:], func(typ uint16, data []byte) error {
		switch typ {
		case uapi.CTA_TUPLE_ORIG:
			return decodeTuple(data, &e, &e.OrigSrc, &e.OrigDst)
		case uapi.CTA_TUPLE_REPLY:
			return decodeTuple(data, &e, &e.ReplySrc, &e.ReplyDst)
		case uapi.CTA_STATUS:
			return number(&e.Status, data)
		case uapi.CTA_PROTOINFO:
			return nl.Walk(data, func(_ uint16, data []byte) error { // of TCP or SCTP
				return inside(&e.State, data, uapi.CTA_PROTOINFO_TCP_STATE) // the same number in SCTP
			})
		case uapi.CTA_ZONE:
			return number(&e.Zone, data)
		case uapi.CTA_ID:
			return number(&e.ID, data)
		case uapi.CTA_TIMEOUT:
			var seconds uint32
			err := number(&seconds, data)
			e.Remaining = time.Duration(seconds) * time.Second
			return err
		case uapi.CTA_COUNTERS_ORIG:
			e.Accounted = true
			return inside(&e.Sent, data, uapi.CTA_COUNTERS_BYTES)
		case uapi.CTA_COUNTERS_REPLY:
			return inside(&e.Received, data, uapi.CTA_COUNTERS_BYTES)
		}
		return nil
	})
	return e, err
}

// inside decodes the number in the attribute of a type.
func inside[T ~uint8 | ~uint64](to *T, b []byte, want uint16) error {
	return nl.Walk(b, func(typ uint16, data []byte) error {
		if typ != want {
			return nil
		}
		return number(to, data)
	})
}

func decodeTuple(b []byte, e *Entry, src, dst *netip.AddrPort) error {
	const ip, proto = uapi.CTA_TUPLE_IP << 8, uapi.CTA_TUPLE_PROTO << 8
	var addrs [2]netip.Addr // source, destination
	var ports [2]uint16
	err := nl.Walk(b, func(in uint16, data []byte) error {
		if in != uapi.CTA_TUPLE_IP && in != uapi.CTA_TUPLE_PROTO {
			if in == ctaTupleZone && src == &e.OrigSrc { // that of the reply direction does not identify an entry
				return number(&e.Zone, data)
			}
			return nil
		}
		return nl.Walk(data, func(typ uint16, data []byte) (err error) {
			switch in<<8 | typ {
			case ip | uapi.CTA_IP_V4_SRC, ip | uapi.CTA_IP_V6_SRC:
				err = addrs[0].UnmarshalBinary(data)
			case ip | uapi.CTA_IP_V4_DST, ip | uapi.CTA_IP_V6_DST:
				err = addrs[1].UnmarshalBinary(data)
			case proto | uapi.CTA_PROTO_NUM:
				err = number(&e.Protocol, data)
			case proto | uapi.CTA_PROTO_SRC_PORT:
				err = number(&ports[0], data)
			case proto | uapi.CTA_PROTO_DST_PORT:
				err = number(&ports[1], data)
			}
			return err
		})
	})
	*src, *dst = netip.AddrPortFrom(addrs[0], ports[0]), netip.AddrPortFrom(addrs[1], ports[1])
	return err
}

// number decodes an unsigned number in network byte order.
func number[T ~uint8 | ~uint16 | ~uint32 | ~uint64](to *T, b []byte) error {
	switch len(b) {
	case 1:
		*to = T(b[0])
	case 2:
		*to = T(binary.BigEndian.Uint16(b))
	case 4:
		*to = T(binary.BigEndian.Uint32(b))
	case 8:
		*to = T(binary.BigEndian.Uint64(b))
	default:
		return errShort
	}
	return nil
}
