package ipvs

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nl"
)

// Of linux/ip_vs.h.
const (
	version = 1

	cmdNewService = 1
	cmdSetService = 2
	cmdDelService = 3
	cmdGetService = 4
	cmdNewDest    = 5
	cmdSetDest    = 6
	cmdDelDest    = 7
	cmdGetDest    = 8
	cmdSetConfig  = 12

	attrService = 1
	attrDest    = 2
	attrTCP     = 4
	attrTCPFin  = 5
	attrUDP     = 6

	svcFamily    = 1
	svcProtocol  = 2
	svcAddr      = 3
	svcPort      = 4
	svcMark      = 5
	svcScheduler = 6
	svcFlags     = 7
	svcTimeout   = 8
	svcNetmask   = 9
	svcStats64   = 12

	statsConnections = 1
	statsReceived    = 4
	statsSent        = 5

	destAddr     = 1
	destPort     = 2
	destForward  = 3
	destWeight   = 4
	destUpper    = 5
	destLower    = 6
	destActive   = 7
	destInactive = 8
	destFamily   = 11

	flagPersistent = 0x1
	flagPorts      = 0x10 // IP_VS_SVC_F_SCHED2: of mh and sh
	flagsOwn       = flagPersistent | 0x4 | 0x8 | flagPorts

	forwardNAT = 0 // IP_VS_CONN_F_MASQ
)

// number16 and number32 append attributes with a number in the byte order of the machine.
func number16(to []byte, typ, n uint16) []byte {
	return nl.Append(to, typ, binary.NativeEndian.AppendUint16(nil, n))
}

func number32(to []byte, typ uint16, n uint32) []byte {
	return nl.Append(to, typ, binary.NativeEndian.AppendUint32(nil, n))
}

// attributes returns the identity of the server.
func (s Server) attributes() []byte { return nl.AppendNested(nil, attrService, s.append) }

func (s Server) append(to []byte) []byte {
	to = number16(to, svcFamily, familyOf(s.Addr))
	if s.Mark != 0 {
		return number32(to, svcMark, s.Mark)
	}
	to = number16(to, svcProtocol, uint16(s.Protocol))
	to = nl.Append(to, svcAddr, wide(s.Addr))
	return nl.AppendUint16(to, svcPort, s.Port)
}

func familyOf(a netip.Addr) uint16 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// wide returns an address as union nf_inet_addr.
func wide(a netip.Addr) []byte {
	b := make([]byte, 16)
	copy(b, a.AsSlice())
	return b
}

// attributes returns everything that the operation needs.
func (c Command) attributes() []byte {
	all := nl.AppendNested(nil, attrService, func(to []byte) []byte {
		to = c.Server.append(to)
		if c.Op == Set {
			to = c.Settings.append(to, c.Server.Addr.BitLen())
		}
		return to
	})
	if c.Op == SetDest || c.Op == DeleteDest {
		all = nl.AppendNested(all, attrDest, c.Dest.append)
	}
	return all
}

func (s Settings) append(to []byte, bits int) []byte {
	flags, netmask := uint32(0), uint32(math.MaxUint32)
	if s.Affinity > 0 {
		flags |= flagPersistent
	}
	if s.Ports {
		flags |= flagPorts
	}
	if bits == 128 {
		netmask = uint32(bits) // a prefix length
	}
	to = nl.AppendString(to, svcScheduler, s.Scheduler)
	to = nl.Append(to, svcFlags, binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, flags), flagsOwn))
	to = number32(to, svcTimeout, uint32(s.Affinity/time.Second))
	return number32(to, svcNetmask, netmask)
}

func (d Destination) append(to []byte) []byte {
	to = number16(to, destFamily, familyOf(d.At.Addr()))
	to = nl.Append(to, destAddr, wide(d.At.Addr()))
	to = nl.AppendUint16(to, destPort, d.At.Port())
	to = number32(to, destForward, forwardNAT)
	to = number32(to, destWeight, d.Weight)
	to = number32(to, destUpper, 0)
	return number32(to, destLower, 0)
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

func decodeListed(m netlink.Message) (Listed, error) {
	var s Listed
	var family uint16
	var flags, timeout uint32
	var addr []byte
	err := nested(m, attrService, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case svcFamily:
			family = ad.Uint16()
		case svcProtocol:
			s.Protocol = uint8(ad.Uint16())
		case svcAddr:
			addr = ad.Bytes()
		case svcPort:
			s.Port = port(ad.Bytes())
		case svcMark:
			s.Mark = ad.Uint32()
		case svcScheduler:
			s.Scheduler = ad.String()
		case svcFlags:
			if b := ad.Bytes(); len(b) >= 4 {
				flags = binary.NativeEndian.Uint32(b)
			}
		case svcTimeout:
			timeout = ad.Uint32()
		case svcStats64:
			nl.Nested(ad, s.Stats.decode)
		}
	})
	if err != nil {
		return Listed{}, err
	}
	if flags&flagPersistent != 0 {
		s.Affinity = time.Duration(timeout) * time.Second
	}
	s.Ports = flags&flagPorts != 0
	s.Addr, err = narrow(addr, family)
	return s, err
}

// decode reads an attribute of the counters.
func (s *Stats) decode(ad *netlink.AttributeDecoder) {
	switch ad.Type() {
	case statsConnections:
		s.Connections = ad.Uint64()
	case statsReceived:
		s.Received = ad.Uint64()
	case statsSent:
		s.Sent = ad.Uint64()
	}
}

// narrow returns the address of a family in a union nf_inet_addr.
func narrow(b []byte, family uint16) (netip.Addr, error) {
	var all [16]byte
	copy(all[:], b)
	switch family {
	case unix.AF_INET:
		return netip.AddrFrom4([4]byte(all[:4])), nil
	case unix.AF_INET6:
		return netip.AddrFrom16(all), nil
	}
	return netip.Addr{}, fmt.Errorf("a virtual server of address family %d", family)
}

func port(b []byte) uint16 {
	if len(b) != 2 {
		return 0
	}
	return binary.BigEndian.Uint16(b)
}

func decodeDestination(m netlink.Message, of Server) (Destination, error) {
	var d Destination
	var addr []byte
	var number uint16
	family := familyOf(of.Addr)
	err := nested(m, attrDest, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case destAddr:
			addr = ad.Bytes()
		case destPort:
			number = port(ad.Bytes())
		case destWeight:
			d.Weight = ad.Uint32()
		case destActive:
			d.Active = int(ad.Uint32())
		case destInactive:
			d.Inactive = int(ad.Uint32())
		case destFamily:
			family = ad.Uint16()
		}
	})
	if err != nil {
		return Destination{}, err
	}
	a, err := narrow(addr, family)
	d.At = netip.AddrPortFrom(a, number)
	return d, err
}
