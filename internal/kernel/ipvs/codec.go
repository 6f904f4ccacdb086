package ipvs

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Of linux/ip_vs.h.
const (
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

// errShort is the error of an answer that ends too early.
var errShort = errors.New("an answer that is cut off")

// attributes calls fn for each attribute of an answer.
func attributes(b []byte, fn func(*netlink.AttributeDecoder) error) error {
	if len(b) < 4 {
		return errShort
	}
	ad, err := netlink.NewAttributeDecoder(b[4:])
	if err != nil {
		return err
	}
	for ad.Next() {
		if err := fn(ad); err != nil {
			return err
		}
	}
	return ad.Err()
}

// nested calls fn for each attribute inside the one of that type.
func nested(b []byte, typ uint16, fn func(*netlink.AttributeDecoder)) error {
	return attributes(b, func(ad *netlink.AttributeDecoder) error {
		if ad.Type() != typ {
			return nil
		}
		ad.Nested(func(in *netlink.AttributeDecoder) error {
			for in.Next() {
				fn(in)
			}
			return in.Err()
		})
		return nil
	})
}

func decodeFamily(b []byte) (name string, id uint16, err error) {
	err = attributes(b, func(ad *netlink.AttributeDecoder) error {
		switch ad.Type() {
		case unix.CTRL_ATTR_FAMILY_NAME:
			name = ad.String()
		case unix.CTRL_ATTR_FAMILY_ID:
			id = ad.Uint16()
		}
		return nil
	})
	return name, id, err
}

func decodeServer(b []byte) (Server, error) {
	var s Server
	var af uint16
	addr := make([]byte, 16)
	err := nested(b, attrService, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case svcFamily:
			af = ad.Uint16()
		case svcProtocol:
			s.Protocol = uint8(ad.Uint16())
		case svcAddr:
			copy(addr, ad.Bytes())
		case svcPort:
			if p := ad.Bytes(); len(p) == 2 {
				s.Port = uint16(p[0])<<8 | uint16(p[1])
			}
		case svcMark:
			s.Mark = ad.Uint32()
		}
	})
	if err != nil {
		return Server{}, err
	}
	size, ok := map[uint16]int{unix.AF_INET: 4, unix.AF_INET6: 16}[af]
	if !ok {
		return Server{}, fmt.Errorf("a virtual server of address family %d", af)
	}
	s.Addr, _ = netip.AddrFromSlice(addr[:size])
	return s, nil
}

func decodeConnections(b []byte) (int, error) {
	n := 0
	err := nested(b, attrDest, func(ad *netlink.AttributeDecoder) {
		if t := ad.Type(); t == destActive || t == destInactive {
			n += int(ad.Uint32())
		}
	})
	return n, err
}
