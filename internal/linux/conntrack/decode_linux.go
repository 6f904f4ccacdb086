package conntrack

import (
	"encoding/binary"
	"net/netip"

	uapi "github.com/vishvananda/netlink/nl"

	"github.com/sluice-proxy/sluice/internal/linux/nl"
)

// decode reads one message of a listing.
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
			return decodeState(data, &e)
		case uapi.CTA_ZONE:
			return number(&e.Zone, data)
		case uapi.CTA_ID:
			return number(&e.ID, data)
		}
		return nil
	})
	return e, err
}

func decodeState(b []byte, e *Entry) error {
	return nl.Walk(b, func(typ uint16, data []byte) error {
		if typ != uapi.CTA_PROTOINFO_TCP && typ != uapi.CTA_PROTOINFO_SCTP {
			return nil
		}
		return nl.Walk(data, func(typ uint16, data []byte) error {
			if typ != uapi.CTA_PROTOINFO_TCP_STATE { // the same number in SCTP
				return nil
			}
			return number(&e.State, data)
		})
	})
}

func decodeTuple(b []byte, e *Entry, src, dst *netip.AddrPort) error {
	var srcAddr, dstAddr netip.Addr
	var srcPort, dstPort uint16
	err := nl.Walk(b, func(typ uint16, data []byte) error {
		switch typ {
		case uapi.CTA_TUPLE_IP:
			return decodeAddrs(data, &srcAddr, &dstAddr)
		case uapi.CTA_TUPLE_PROTO:
			return decodePorts(data, e, &srcPort, &dstPort)
		case ctaTupleZone:
			// A zone of the reply direction only does not identify the entry.
			if src == &e.OrigSrc {
				return number(&e.Zone, data)
			}
		}
		return nil
	})
	*src = netip.AddrPortFrom(srcAddr, srcPort)
	*dst = netip.AddrPortFrom(dstAddr, dstPort)
	return err
}

// decodeAddrs needs no family: the four types differ.
func decodeAddrs(b []byte, src, dst *netip.Addr) error {
	return nl.Walk(b, func(typ uint16, data []byte) error {
		a, ok := netip.AddrFromSlice(data)
		if !ok {
			return errShort
		}
		switch typ {
		case uapi.CTA_IP_V4_SRC, uapi.CTA_IP_V6_SRC:
			*src = a
		case uapi.CTA_IP_V4_DST, uapi.CTA_IP_V6_DST:
			*dst = a
		}
		return nil
	})
}

func decodePorts(b []byte, e *Entry, src, dst *uint16) error {
	return nl.Walk(b, func(typ uint16, data []byte) error {
		switch typ {
		case uapi.CTA_PROTO_NUM:
			return number(&e.Protocol, data)
		case uapi.CTA_PROTO_SRC_PORT:
			return number(src, data)
		case uapi.CTA_PROTO_DST_PORT:
			return number(dst, data)
		}
		return nil
	})
}

// number reads an unsigned number in network byte order.
func number[T ~uint8 | ~uint16 | ~uint32](to *T, b []byte) error {
	switch len(b) {
	case 1:
		*to = T(b[0])
	case 2:
		*to = T(binary.BigEndian.Uint16(b))
	case 4:
		*to = T(binary.BigEndian.Uint32(b))
	default:
		return errShort
	}
	return nil
}
