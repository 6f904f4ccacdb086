package ipset

import (
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nl"
)

// The sets of kube-proxy have at most 65,536 members.
const (
	hashSize   = 1024
	maxMembers = 1 << 20
)

// ErrFull is the error of a set that holds as many members as it can.
const ErrFull = unix.Errno(4352)

// Type is the type of a set, as ipset spells it.
type Type string

// The types.
const (
	IP        Type = "hash:ip"
	IPPort    Type = "hash:ip,port"
	IPPortIP  Type = "hash:ip,port,ip"
	IPPortNet Type = "hash:ip,port,net"
	Port      Type = "bitmap:port" // all ports
)

// Definition is how a set is created.
type Definition struct {
	Type  Type
	IPv6  bool // of hash types
	Marks bool // members have packet marks (skbinfo)
}

// Member is a member of a set. Its type says which fields it has.
type Member struct {
	Addr     netip.Addr
	Protocol uint8 // IANA protocol number
	Port     uint16
	To       netip.Prefix // the second address or network
}

// Set is a set with its members and their marks.
type Set struct {
	Definition
	Members map[Member]uint32
}

// Op is what a Command does.
type Op uint8

// The operations. Each has no effect, and is no error, if it is already done.
const (
	Create  Op = iota // creates a set
	Destroy           // destroys a set, which no rule may use
	Add               // adds a member, or changes its mark
	Delete            // deletes a member
)

// Command changes a set.
type Command struct {
	Op         Op
	Set        string
	Definition Definition // the set
	Member     Member
	Mark       uint32 // of an added member, if the set has marks
}

// String returns the change as a line for ipset restore.
func (c Command) String() string {
	switch c.Op {
	case Create:
		return "create " + c.Set + " " + c.Definition.String()
	case Destroy:
		return "destroy " + c.Set
	case Add:
		line := "add " + c.Set + " " + c.Member.String()
		if c.Definition.Marks {
			line += fmt.Sprintf(" skbmark %#x", c.Mark)
		}
		return line
	default:
		return "del " + c.Set + " " + c.Member.String()
	}
}

// String returns the arguments that create such a set.
func (k Definition) String() string {
	text := string(k.Type)
	switch {
	case k.Type == Port:
		text += " range 0-65535"
	case k.IPv6:
		text += fmt.Sprintf(" family inet6 hashsize %d maxelem %d", hashSize, maxMembers)
	default:
		text += fmt.Sprintf(" family inet hashsize %d maxelem %d", hashSize, maxMembers)
	}
	if k.Marks {
		text += " skbinfo"
	}
	return text
}

// String returns the member as ipset spells it: "10.96.0.1,tcp:80".
func (m Member) String() string {
	var parts []string
	if m.Addr.IsValid() {
		parts = append(parts, m.Addr.String())
	}
	switch {
	case m.Protocol != 0:
		parts = append(parts, fmt.Sprintf("%s:%d", nl.ProtocolName(m.Protocol), m.Port))
	case !m.Addr.IsValid():
		parts = append(parts, fmt.Sprint(m.Port))
	}
	if m.To.IsValid() {
		if m.To.IsSingleIP() {
			parts = append(parts, m.To.Addr().String())
		} else {
			parts = append(parts, m.To.String())
		}
	}
	return strings.Join(parts, ",")
}
