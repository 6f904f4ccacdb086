package ipvs

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/nl"
)

// Of linux/ip_vs.h.
const (
	version = 1

	cmdDelService = 3
	cmdGetService = 4
	cmdGetDest    = 8

	attrService = 1
	attrDest    = 2

	svcFamily   = 1
	svcProtocol = 2
	svcAddr     = 3
	svcPort     = 4
	svcMark     = 5

	destActive   = 7
	destInactive = 8
)

// encode adds the identity of the server.
func (s Server) encode(ae *netlink.AttributeEncoder) {
	ae.Nested(attrService, func(ae *netlink.AttributeEncoder) error {
		family := uint16(unix.AF_INET6)
		if s.Addr.Is4() {
			family = unix.AF_INET
		}
		ae.Uint16(svcFamily, family)
		if s.Mark != 0 {
			ae.Uint32(svcMark, s.Mark)
			return nil
		}
		addr := make([]byte, 16) // of either family
		copy(addr, s.Addr.AsSlice())
		ae.Uint16(svcProtocol, uint16(s.Protocol))
		ae.Bytes(svcAddr, addr)
		ae.Bytes(svcPort, binary.BigEndian.AppendUint16(nil, s.Port))
		return nil
	})
}

// nested calls fn for each attribute within the attribute of that type.
func nested(m netlink.Message, typ uint16, fn func(*netlink.AttributeDecoder)) error {
	return nl.Decode(m, binary.NativeEndian, func(ad *netlink.AttributeDecoder) {
		if ad.Type() == typ {
			nl.Nested(ad, fn)
		}
	})
}

func decodeFamily(m netlink.Message) (name string, id netlink.HeaderType, err error) {
	err = nl.Decode(m, binary.NativeEndian, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.CTRL_ATTR_FAMILY_NAME:
			name = ad.String()
		case unix.CTRL_ATTR_FAMILY_ID:
			id = netlink.HeaderType(ad.Uint16())
		}
	})
	return name, id, err
}

func decodeServer(m netlink.Message) (Server, error) {
	var s Server
	var family uint16
	addr := make([]byte, 16)
	err := nested(m, attrService, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case svcFamily:
			family = ad.Uint16()
		case svcProtocol:
			s.Protocol = uint8(ad.Uint16())
		case svcAddr:
			copy(addr, ad.Bytes())
		case svcPort:
			if p := ad.Bytes(); len(p) == 2 {
				s.Port = binary.BigEndian.Uint16(p)
			}
		case svcMark:
			s.Mark = ad.Uint32()
		}
	})
	switch {
	case err != nil:
		return Server{}, err
	case family == unix.AF_INET:
		addr = addr[:4]
	case family != unix.AF_INET6:
		return Server{}, fmt.Errorf("a virtual server of address family %d", family)
	}
	s.Addr, _ = netip.AddrFromSlice(addr)
	return s, nil
}

func decodeConnections(m netlink.Message) (n int, err error) {
	err = nested(m, attrDest, func(ad *netlink.AttributeDecoder) {
		if t := ad.Type(); t == destActive || t == destInactive {
			n += int(ad.Uint32())
		}
	})
	return n, err
}
