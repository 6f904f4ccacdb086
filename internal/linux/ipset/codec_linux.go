package ipset

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"

	"github.com/mdlayher/netlink"
	uapi "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nl"
)

// flagNamesOnly is IPSET_FLAG_LIST_SETNAME (linux/netfilter/ipset/ip_set.h).
const flagNamesOnly = 2

func (k Kind) family() uint8 {
	if k.IPv6 && k.Type != Port {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

func big16(n uint16) []byte { return binary.BigEndian.AppendUint16(nil, n) }
func big32(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

// encodeCreate adds what creates a set, in a revision of its type.
func (c Change) encodeCreate(ae *netlink.AttributeEncoder, revision uint8) {
	ae.String(uapi.IPSET_ATTR_SETNAME, c.Set)
	ae.String(uapi.IPSET_ATTR_TYPENAME, string(c.Kind.Type))
	ae.Uint8(uapi.IPSET_ATTR_REVISION, revision)
	ae.Uint8(uapi.IPSET_ATTR_FAMILY, c.Kind.family())
	ae.Nested(uapi.IPSET_ATTR_DATA, func(ae *netlink.AttributeEncoder) error {
		if c.Kind.Type == Port {
			ae.Bytes(uapi.IPSET_ATTR_PORT|netlink.NetByteOrder, big16(0))
			ae.Bytes(uapi.IPSET_ATTR_PORT_TO|netlink.NetByteOrder, big16(math.MaxUint16))
		} else {
			ae.Bytes(uapi.IPSET_ATTR_HASHSIZE|netlink.NetByteOrder, big32(hashSize))
			ae.Bytes(uapi.IPSET_ATTR_MAXELEM|netlink.NetByteOrder, big32(maxMembers))
		}
		if c.Kind.Marks {
			ae.Bytes(uapi.IPSET_ATTR_CADT_FLAGS|netlink.NetByteOrder, big32(uapi.IPSET_FLAG_WITH_SKBINFO))
		}
		return nil
	})
}

// encodeMember adds a member to add or to delete.
func (c Change) encodeMember(ae *netlink.AttributeEncoder) {
	m := c.Member
	ae.String(uapi.IPSET_ATTR_SETNAME, c.Set)
	ae.Nested(uapi.IPSET_ATTR_DATA, func(ae *netlink.AttributeEncoder) error {
		if m.Addr.IsValid() {
			encodeAddr(ae, uapi.IPSET_ATTR_IP, m.Addr)
		}
		if m.Protocol != 0 || m.Port != 0 {
			ae.Bytes(uapi.IPSET_ATTR_PORT|netlink.NetByteOrder, big16(m.Port))
		}
		if m.Protocol != 0 {
			ae.Uint8(uapi.IPSET_ATTR_PROTO, m.Protocol)
		}
		if m.To.IsValid() {
			encodeAddr(ae, uapi.IPSET_ATTR_IP2, m.To.Addr())
			if c.Kind.Type == IPPortNet {
				ae.Uint8(uapi.IPSET_ATTR_CIDR2, uint8(m.To.Bits()))
			}
		}
		if c.Op == Add && c.Kind.Marks {
			ae.Bytes(uapi.IPSET_ATTR_SKBMARK|netlink.NetByteOrder, append(big32(c.Mark), big32(math.MaxUint32)...))
		}
		return nil
	})
}

func encodeAddr(ae *netlink.AttributeEncoder, typ uint16, a netip.Addr) {
	ae.Nested(typ, func(ae *netlink.AttributeEncoder) error {
		if a.Is4() {
			ae.Bytes(uapi.IPSET_ATTR_IPADDR_IPV4|netlink.NetByteOrder, a.AsSlice())
		} else {
			ae.Bytes(uapi.IPSET_ATTR_IPADDR_IPV6|netlink.NetByteOrder, a.AsSlice())
		}
		return nil
	})
}

// setName decodes one message of a listing.
func setName(m netlink.Message) (name string, err error) {
	err = nl.Decode(m, binary.BigEndian, func(ad *netlink.AttributeDecoder) {
		if ad.Type() == uapi.IPSET_ATTR_SETNAME {
			name = ad.String()
		}
	})
	return name, err
}

// decode adds a message of a listing to a set. A set may have several messages.
func (s *Set) decode(m netlink.Message) error {
	return nl.Decode(m, binary.BigEndian, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case uapi.IPSET_ATTR_TYPENAME:
			s.Type = Type(ad.String())
		case uapi.IPSET_ATTR_FAMILY:
			s.IPv6 = ad.Uint8() == unix.AF_INET6
		case uapi.IPSET_ATTR_DATA:
			nl.Nested(ad, func(ad *netlink.AttributeDecoder) {
				if ad.Type() == uapi.IPSET_ATTR_CADT_FLAGS {
					s.Marks = ad.Uint32()&uapi.IPSET_FLAG_WITH_SKBINFO != 0
				}
			})
		case uapi.IPSET_ATTR_ADT:
			nl.Nested(ad, func(ad *netlink.AttributeDecoder) {
				m, mark := decodeMember(ad)
				s.Members[m] = mark
			})
		}
	})
}

func decodeMember(ad *netlink.AttributeDecoder) (m Member, mark uint32) {
	var to netip.Addr
	bits := -1
	nl.Nested(ad, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case uapi.IPSET_ATTR_IP:
			m.Addr = decodeAddr(ad)
		case uapi.IPSET_ATTR_PORT:
			m.Port = ad.Uint16()
		case uapi.IPSET_ATTR_PROTO:
			m.Protocol = ad.Uint8()
		case uapi.IPSET_ATTR_IP2:
			to = decodeAddr(ad)
		case uapi.IPSET_ATTR_CIDR2:
			bits = int(ad.Uint8())
		case uapi.IPSET_ATTR_SKBMARK:
			mark = uint32(ad.Uint64() >> 32)
		}
	})
	if to.IsValid() {
		if bits < 0 {
			bits = to.BitLen()
		}
		m.To = netip.PrefixFrom(to, bits)
	}
	return m, mark
}

func decodeAddr(ad *netlink.AttributeDecoder) (a netip.Addr) {
	nl.Nested(ad, func(ad *netlink.AttributeDecoder) { a, _ = netip.AddrFromSlice(ad.Bytes()) })
	return a
}

// decodeRevision returns the newest revision of a type.
func decodeRevision(m netlink.Message) (newest uint8, err error) {
	err = nl.Decode(m, binary.BigEndian, func(ad *netlink.AttributeDecoder) {
		if ad.Type() == uapi.IPSET_ATTR_REVISION {
			newest = ad.Uint8()
		}
	})
	return newest, err
}

// reason returns the reason for an error of ipset, whose numbers other subsystems do not have.
func reason(err error) error {
	for number, text := range map[unix.Errno]string{
		uapi.IPSET_ERR_FIND_TYPE: "this kernel does not have the type of set",
		uapi.IPSET_ERR_MAX_SETS:  "there are too many sets",
		errBusy:                  "rules refer to it",
		unix.EEXIST:              "it exists with another type",
		ErrFull:                  "it is full",
		ErrFull + 1:              "its members have another family",
	} {
		if errors.Is(err, number) {
			return fmt.Errorf("%s (%w)", text, err)
		}
	}
	return err
}
