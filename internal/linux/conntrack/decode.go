package conntrack

import (
	"net/netip"

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
		case ctaTupleOrig:
			return decodeTuple(data, &e, &e.OrigSrc, &e.OrigDst)
		case ctaTupleReply:
			return decodeTuple(data, &e, &e.ReplySrc, &e.ReplyDst)
		case ctaStatus:
			v, err := number(data, 4)
			e.Status = Status(v)
			return err
		case ctaProtoInfo:
			return decodeState(data, &e)
		case ctaZone:
			v, err := number(data, 2)
			e.Zone = uint16(v)
			return err
		case ctaID:
			v, err := number(data, 4)
			e.ID = v
			return err
		}
		return nil
	})
	return e, err
}

func decodeState(b []byte, e *Entry) error {
	return nl.Walk(b, func(typ uint16, data []byte) error {
		if typ != ctaProtoInfoTCP && typ != ctaProtoInfoSCTP {
			return nil
		}
		return nl.Walk(data, func(typ uint16, data []byte) error {
			if typ != ctaState {
				return nil
			}
			v, err := number(data, 1)
			e.State = State(v)
			return err
		})
	})
}

func decodeTuple(b []byte, e *Entry, src, dst *netip.AddrPort) error {
	var srcAddr, dstAddr netip.Addr
	var srcPort, dstPort uint16
	err := nl.Walk(b, func(typ uint16, data []byte) error {
		switch typ {
		case ctaTupleIP:
			return decodeAddrs(data, &srcAddr, &dstAddr)
		case ctaTupleProto:
			return decodePorts(data, e, &srcPort, &dstPort)
		case ctaTupleZone:
			// A zone of the reply direction only does not identify the entry.
			if src != &e.OrigSrc {
				return nil
			}
			v, err := number(data, 2)
			e.Zone = uint16(v)
			return err
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
		case attributesOf(IPv4).src, attributesOf(IPv6).src:
			*src = a
		case attributesOf(IPv4).dst, attributesOf(IPv6).dst:
			*dst = a
		}
		return nil
	})
}

func decodePorts(b []byte, e *Entry, src, dst *uint16) error {
	return nl.Walk(b, func(typ uint16, data []byte) error {
		switch typ {
		case ctaProtoNum:
			v, err := number(data, 1)
			e.Protocol = uint8(v)
			return err
		case ctaProtoSrcPort:
			v, err := number(data, 2)
			*src = uint16(v)
			return err
		case ctaProtoDstPort:
			v, err := number(data, 2)
			*dst = uint16(v)
			return err
		}
		return nil
	})
}

// number reads an unsigned number of size bytes in network byte order.
func number(b []byte, size int) (uint32, error) {
	if len(b) < size {
		return 0, errShort
	}
	var v uint32
	for _, c := range b[:size] {
		v = v<<8 | uint32(c)
	}
	return v, nil
}
