package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	uapi "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Attribute types of nfnetlink_conntrack.h that package uapi does not have.
const (
	ctaTupleZone = 3

	ctaFilter      = 25
	ctaFilterOrig  = 1
	ctaFilterReply = 2

	ctaStatusMask = 26
)

const nfgenHeaderLen = 4

// What a filter compares, as bits of ctaFilterOrig and ctaFilterReply.
const (
	filterSrcAddr = 1 << 0
	filterDstAddr = 1 << 1
	filterProto   = 1 << 3
	filterSrcPort = 1 << 4
	filterDstPort = 1 << 5
)

var errShort = errors.New("conntrack message is truncated")

// header is the nfgenmsg every conntrack message begins with.
func header(f Family) []byte {
	if f == IPv4 {
		return []byte{unix.AF_INET, 0, 0, 0}
	}
	return []byte{unix.AF_INET6, 0, 0, 0}
}

// encode returns a whole message: header and attributes.
func encode(f Family, fill func(*netlink.AttributeEncoder)) ([]byte, error) {
	ae := netlink.NewAttributeEncoder()
	ae.ByteOrder = binary.BigEndian
	fill(ae)
	b, err := ae.Encode()
	if err != nil {
		return nil, fmt.Errorf("encode conntrack message: %w", err)
	}
	return append(header(f), b...), nil
}

func nest(ae *netlink.AttributeEncoder, typ uint16, fill func(*netlink.AttributeEncoder)) {
	ae.Nested(typ, func(inner *netlink.AttributeEncoder) error {
		inner.ByteOrder = binary.BigEndian
		fill(inner)
		return nil
	})
}

// tuple is one direction of a flow. Invalid addresses and ports of 0 are left out, as in a filter.
type tuple struct {
	protocol uint8
	src, dst netip.AddrPort
}

func (t tuple) encode(ae *netlink.AttributeEncoder, typ uint16) {
	nest(ae, typ, func(ae *netlink.AttributeEncoder) {
		if t.src.Addr().IsValid() || t.dst.Addr().IsValid() {
			nest(ae, uapi.CTA_TUPLE_IP, t.encodeAddrs)
		}
		nest(ae, uapi.CTA_TUPLE_PROTO, t.encodePorts)
	})
}

func (t tuple) encodeAddrs(ae *netlink.AttributeEncoder) {
	encodeAddr(ae, uapi.CTA_IP_V4_SRC, uapi.CTA_IP_V6_SRC, t.src.Addr())
	encodeAddr(ae, uapi.CTA_IP_V4_DST, uapi.CTA_IP_V6_DST, t.dst.Addr())
}

func encodeAddr(ae *netlink.AttributeEncoder, ip4, ip6 uint16, a netip.Addr) {
	switch {
	case a.Is4():
		ae.Bytes(ip4, a.AsSlice())
	case a.IsValid():
		ae.Bytes(ip6, a.AsSlice())
	}
}

func (t tuple) encodePorts(ae *netlink.AttributeEncoder) {
	ae.Uint8(uapi.CTA_PROTO_NUM, t.protocol)
	if t.src.Port() != 0 {
		ae.Uint16(uapi.CTA_PROTO_SRC_PORT, t.src.Port())
	}
	if t.dst.Port() != 0 {
		ae.Uint16(uapi.CTA_PROTO_DST_PORT, t.dst.Port())
	}
}

// flags returns the parts of the tuple that a filter compares, in host byte order.
func (t tuple) flags() []byte {
	flags := uint32(filterProto)
	for bit, set := range map[uint32]bool{
		filterSrcAddr: t.src.Addr().IsValid(), filterDstAddr: t.dst.Addr().IsValid(),
		filterSrcPort: t.src.Port() != 0, filterDstPort: t.dst.Port() != 0,
	} {
		if set {
			flags |= bit
		}
	}
	return binary.NativeEndian.AppendUint32(nil, flags)
}

// encodeFilter encodes a filter for the kernel. Kernels before 5.8 ignore the
// attribute and send all entries of the family; before 5.18 they ignore the status.
//
// For IPv6 it encodes ports only: kernels up to 6.18 at least invert the comparison of addresses, and would leave out
// exactly the matching entries (ctnetlink_filter_match_tuple uses ipv6_addr_cmp as a test of equality).
func encodeFilter(f Filter) ([]byte, error) {
	if f.Family == IPv6 {
		f.OrigDst = netip.AddrPortFrom(netip.Addr{}, f.OrigDst.Port())
		f.ReplySrc = netip.AddrPortFrom(netip.Addr{}, f.ReplySrc.Port())
	}
	orig := tuple{protocol: f.Protocol, dst: f.OrigDst}
	reply := tuple{protocol: f.Protocol, src: f.ReplySrc}
	byReply := f.ReplySrc.Addr().IsValid() || f.ReplySrc.Port() != 0
	return encode(f.Family, func(ae *netlink.AttributeEncoder) {
		orig.encode(ae, uapi.CTA_TUPLE_ORIG)
		if byReply {
			reply.encode(ae, uapi.CTA_TUPLE_REPLY)
		}
		if f.Unanswered {
			ae.Uint32(uapi.CTA_STATUS, 0)
			ae.Uint32(ctaStatusMask, uint32(Answered))
		}
		nest(ae, ctaFilter, func(ae *netlink.AttributeEncoder) {
			ae.Bytes(ctaFilterOrig, orig.flags())
			if byReply {
				ae.Bytes(ctaFilterReply, reply.flags())
			}
		})
	})
}

// encodeDelete identifies one entry by the addresses of its first packet, its zone and
// its ID, so that a newer entry with the same addresses is kept.
func encodeDelete(e Entry) ([]byte, error) {
	t := tuple{protocol: e.Protocol, src: e.OrigSrc, dst: e.OrigDst}
	return encode(e.Family(), func(ae *netlink.AttributeEncoder) {
		t.encode(ae, uapi.CTA_TUPLE_ORIG)
		if e.Zone != 0 {
			ae.Uint16(uapi.CTA_ZONE, e.Zone)
		}
		if e.ID != 0 {
			ae.Uint32(uapi.CTA_ID, e.ID)
		}
	})
}
