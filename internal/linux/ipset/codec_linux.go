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

func (k Definition) family() uint8 {
	if k.IPv6 && k.Type != Port {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// forCreate returns the attributes of a request to create the set, in a revision of its type.
func (c Command) forCreate(revision uint8) []byte {
	all := nl.AppendString(nil, uapi.IPSET_ATTR_SETNAME, c.Set)
	all = nl.AppendString(all, uapi.IPSET_ATTR_TYPENAME, string(c.Definition.Type))
	all = nl.AppendUint8(all, uapi.IPSET_ATTR_REVISION, revision)
	all = nl.AppendUint8(all, uapi.IPSET_ATTR_FAMILY, c.Definition.family())
	return nl.AppendNested(all, uapi.IPSET_ATTR_DATA, func(to []byte) []byte {
		if c.Definition.Type == Port {
			to = nl.AppendUint16(to, uapi.IPSET_ATTR_PORT|netlink.NetByteOrder, 0)
			to = nl.AppendUint16(to, uapi.IPSET_ATTR_PORT_TO|netlink.NetByteOrder, math.MaxUint16)
		} else {
			to = nl.AppendUint32(to, uapi.IPSET_ATTR_HASHSIZE|netlink.NetByteOrder, hashSize)
			to = nl.AppendUint32(to, uapi.IPSET_ATTR_MAXELEM|netlink.NetByteOrder, maxMembers)
		}
		if c.Definition.Marks {
			to = nl.AppendUint32(to, uapi.IPSET_ATTR_CADT_FLAGS|netlink.NetByteOrder, uapi.IPSET_FLAG_WITH_SKBINFO)
		}
		return to
	})
}

// forMember returns the attributes of a request to add or delete a member.
func (c Command) forMember() []byte {
	m := c.Member
	all := nl.AppendString(nil, uapi.IPSET_ATTR_SETNAME, c.Set)
	return nl.AppendNested(all, uapi.IPSET_ATTR_DATA, func(to []byte) []byte {
		if m.Addr.IsValid() {
			to = appendAddr(to, uapi.IPSET_ATTR_IP, m.Addr)
		}
		if m.Protocol != 0 || m.Port != 0 {
			to = nl.AppendUint16(to, uapi.IPSET_ATTR_PORT|netlink.NetByteOrder, m.Port)
		}
		if m.Protocol != 0 {
			to = nl.AppendUint8(to, uapi.IPSET_ATTR_PROTO, m.Protocol)
		}
		if m.To.IsValid() {
			to = appendAddr(to, uapi.IPSET_ATTR_IP2, m.To.Addr())
			if c.Definition.Type == IPPortNet {
				to = nl.AppendUint8(to, uapi.IPSET_ATTR_CIDR2, uint8(m.To.Bits()))
			}
		}
		if c.Op == Add && c.Definition.Marks {
			mark := binary.BigEndian.AppendUint64(nil, uint64(c.Mark)<<32|math.MaxUint32) // with its mask
			to = nl.Append(to, uapi.IPSET_ATTR_SKBMARK|netlink.NetByteOrder, mark)
		}
		return to
	})
}

func appendAddr(to []byte, typ uint16, a netip.Addr) []byte {
	family := uint16(uapi.IPSET_ATTR_IPADDR_IPV6)
	if a.Is4() {
		family = uapi.IPSET_ATTR_IPADDR_IPV4
	}
	return nl.AppendNested(to, typ, func(to []byte) []byte {
		return nl.Append(to, family|netlink.NetByteOrder, a.AsSlice())
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
