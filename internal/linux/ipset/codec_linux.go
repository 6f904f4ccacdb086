package ipset

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nl"
)

// Of linux/netfilter/ipset/ip_set.h.
const (
	protocol = 6

	cmdCreate  = 2
	cmdDestroy = 3
	cmdList    = 7
	cmdAdd     = 9
	cmdDelete  = 10
	cmdType    = 13

	attrProtocol = 1
	attrSetName  = 2
	attrTypeName = 3
	attrRevision = 4
	attrFamily   = 5
	attrFlags    = 6
	attrData     = 7
	attrMembers  = 8 // IPSET_ATTR_ADT

	dataIP = 1

	dataPort     = 4
	dataPortTo   = 5
	dataProto    = 7
	dataFlags    = 8
	dataHashSize = 18
	dataMax      = 19
	dataIP2      = 20
	dataCIDR2    = 21
	dataMark     = 27

	addrIPv4 = 1
	addrIPv6 = 2

	flagNamesOnly = 2
	flagMarks     = 1 << 6 // IPSET_FLAG_WITH_SKBINFO

	// The sets of kube-proxy have at most 65,536 members.
	hashSize   = 1024
	maxMembers = 1 << 20

	tcp, udp, sctp = unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP
)

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
	ae.String(attrSetName, c.Set)
	ae.String(attrTypeName, string(c.Kind.Type))
	ae.Uint8(attrRevision, revision)
	ae.Uint8(attrFamily, c.Kind.family())
	ae.Nested(attrData, func(ae *netlink.AttributeEncoder) error {
		if c.Kind.Type == Port {
			ae.Bytes(dataPort|netlink.NetByteOrder, big16(0))
			ae.Bytes(dataPortTo|netlink.NetByteOrder, big16(math.MaxUint16))
		} else {
			ae.Bytes(dataHashSize|netlink.NetByteOrder, big32(hashSize))
			ae.Bytes(dataMax|netlink.NetByteOrder, big32(maxMembers))
		}
		if c.Kind.Marks {
			ae.Bytes(dataFlags|netlink.NetByteOrder, big32(flagMarks))
		}
		return nil
	})
}

// encodeMember adds a member to add or to delete.
func (c Change) encodeMember(ae *netlink.AttributeEncoder) {
	m := c.Member
	ae.String(attrSetName, c.Set)
	ae.Nested(attrData, func(ae *netlink.AttributeEncoder) error {
		if m.Addr.IsValid() {
			encodeAddr(ae, dataIP, m.Addr)
		}
		if m.Protocol != 0 || m.Port != 0 {
			ae.Bytes(dataPort|netlink.NetByteOrder, big16(m.Port))
		}
		if m.Protocol != 0 {
			ae.Uint8(dataProto, m.Protocol)
		}
		if m.To.IsValid() {
			encodeAddr(ae, dataIP2, m.To.Addr())
			if c.Kind.Type == IPPortNet {
				ae.Uint8(dataCIDR2, uint8(m.To.Bits()))
			}
		}
		if c.Op == Add && c.Kind.Marks {
			ae.Bytes(dataMark|netlink.NetByteOrder, append(big32(c.Mark), big32(math.MaxUint32)...))
		}
		return nil
	})
}

func encodeAddr(ae *netlink.AttributeEncoder, typ uint16, a netip.Addr) {
	ae.Nested(typ, func(ae *netlink.AttributeEncoder) error {
		if a.Is4() {
			ae.Bytes(addrIPv4|netlink.NetByteOrder, a.AsSlice())
		} else {
			ae.Bytes(addrIPv6|netlink.NetByteOrder, a.AsSlice())
		}
		return nil
	})
}

// setName decodes one message of a listing.
func setName(m netlink.Message) (name string, err error) {
	err = nl.Decode(m, binary.BigEndian, func(ad *netlink.AttributeDecoder) {
		if ad.Type() == attrSetName {
			name = ad.String()
		}
	})
	return name, err
}

// decode adds a message of a listing to a set. A set may have several messages.
func (s *Set) decode(m netlink.Message) error {
	return nl.Decode(m, binary.BigEndian, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case attrTypeName:
			s.Type = Type(ad.String())
		case attrFamily:
			s.IPv6 = ad.Uint8() == unix.AF_INET6
		case attrData:
			nl.Nested(ad, func(ad *netlink.AttributeDecoder) {
				if ad.Type() == dataFlags {
					s.Marks = ad.Uint32()&flagMarks != 0
				}
			})
		case attrMembers:
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
		case dataIP:
			m.Addr = decodeAddr(ad)
		case dataPort:
			m.Port = ad.Uint16()
		case dataProto:
			m.Protocol = ad.Uint8()
		case dataIP2:
			to = decodeAddr(ad)
		case dataCIDR2:
			bits = int(ad.Uint8())
		case dataMark:
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
		if ad.Type() == attrRevision {
			newest = ad.Uint8()
		}
	})
	return newest, err
}

// ErrFull is the error of a set that holds as many members as it can.
const ErrFull = unix.Errno(4352)

// reason returns the reason for an error of ipset, whose numbers other subsystems do not have.
func reason(err error) error {
	for number, text := range map[unix.Errno]string{
		4098: "this kernel does not have the type of set", 4099: "there are too many sets", errBusy: "rules refer to it",
		unix.EEXIST: "it exists with another type", ErrFull: "it is full", 4353: "its members have another family",
	} {
		if errors.Is(err, number) {
			return fmt.Errorf("%s (%w)", text, err)
		}
	}
	return err
}
