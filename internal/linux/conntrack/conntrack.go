// Package conntrack lists, watches and deletes entries of the kernel's connection tracking table. It has no policy.
package conntrack

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Protocols by their IANA number, as Filter and Entry carry them.
const (
	TCP  uint8 = 6
	UDP  uint8 = 17
	SCTP uint8 = 132
)

// Family is an IP family, by its version number.
type Family uint8

// The two families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// FamilyOf returns the family of an address.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// Status are the state bits of an entry.
type Status uint32

// Bits of a Status, as in nf_conntrack_common.h (IPS_*).
const (
	Answered Status = 1 << 1
	Assured  Status = 1 << 2 // a UDP flow is a stream, with a longer timeout
	SrcNAT   Status = 1 << 4
	DstNAT   Status = 1 << 5
)

// State is the state of a connection, by the numbers of its protocol (nf_conntrack_tcp.h, nf_conntrack_sctp.h).
type State uint8

// The states of a connection of which only the first packet was seen.
const (
	SynSent    State = 1 // TCP
	CookieWait State = 2 // SCTP
)

const (
	// lastAck is the first TCP state in which both sides have closed the connection. In FIN_WAIT and CLOSE_WAIT one side
	// may still send. The later states are TIME_WAIT, CLOSE and SYN_SENT2.
	lastAck State = 6

	// SCTP states in which all data of both sides has arrived.
	closed          State = 1
	shutdownAckSent State = 7
)

// ErrLost means that the kernel discarded events, because they were not read soon enough.
var ErrLost = errors.New("conntrack events were lost")

// Entry is one tracked flow.
type Entry struct {
	Protocol uint8

	// The addresses of the first packet and of answers. With destination NAT, ReplySrc is the real destination.
	OrigSrc, OrigDst   netip.AddrPort
	ReplySrc, ReplyDst netip.AddrPort

	Status Status
	State  State  // of TCP and SCTP
	Zone   uint16 // of the original direction
	ID     uint32 // unique, unless a later entry has the same addresses and memory (nf_ct_get_id); 0: unknown

	// Remaining is the time, in whole seconds, after which the entry expires without further packets.
	Remaining time.Duration

	// Sent and Received are bytes from and to the client, including IP headers. They are valid only if the entry is
	// Accounted (net.netfilter.nf_conntrack_acct).
	Sent, Received uint64
	Accounted      bool
}

// Load is the fill level of a table, and its counters of losses since the network namespace was created.
type Load struct {
	Entries, Limit uint32 // a Limit of 0 means no limit

	InsertFailed uint64 // entries that could not be added, mostly because two packets of a flow came at once
	EarlyDropped uint64 // entries that were evicted because the table was full
}

// Translated reports whether the destination was translated.
func (e Entry) Translated() bool { return e.Status&DstNAT != 0 }

// Answered reports whether an answer was seen.
func (e Entry) Answered() bool { return e.Status&Answered != 0 }

// Opening reports whether only the first packet of a TCP or SCTP connection was seen.
func (e Entry) Opening() bool {
	return e.Protocol == TCP && e.State == SynSent || e.Protocol == SCTP && e.State == CookieWait
}

// Closing reports whether both sides of a TCP or SCTP connection have closed it, so that its entry will expire.
func (e Entry) Closing() bool {
	return e.Protocol == TCP && e.State >= lastAck ||
		e.Protocol == SCTP && (e.State == closed || e.State >= shutdownAckSent)
}

// Family returns the IP family of the flow.
func (e Entry) Family() Family { return FamilyOf(e.OrigDst.Addr()) }

// String returns the flow in one line, for messages and tests.
func (e Entry) String() string {
	s := fmt.Sprintf("%d %s > %s", e.Protocol, e.OrigSrc, e.OrigDst)
	if e.Translated() || e.ReplySrc != e.OrigDst {
		s += " via " + e.ReplySrc.String()
	}
	if e.Zone != 0 {
		s += fmt.Sprintf(" zone %d", e.Zone)
	}
	return s
}

// Filter selects entries. In OrigDst and ReplySrc an invalid address or a port of 0 matches all.
type Filter struct {
	Family   Family // 0: both families; the kernel then filters by Unanswered only
	Protocol uint8  // 0: all protocols; the kernel then does not filter by ports
	OrigDst  netip.AddrPort
	ReplySrc netip.AddrPort

	Unanswered bool // only flows without an answer
}

// String returns the filter for messages.
func (f Filter) String() string {
	var s strings.Builder
	if f.Family == 0 {
		s.WriteString("IPv4 and IPv6")
	} else {
		fmt.Fprintf(&s, "IPv%d", f.Family)
	}
	fmt.Fprintf(&s, " protocol %d", f.Protocol)
	for _, side := range []struct {
		name string
		end  netip.AddrPort
	}{{"to", f.OrigDst}, {"answered by", f.ReplySrc}} {
		switch {
		case side.end.Addr().IsValid():
			fmt.Fprintf(&s, " %s %s", side.name, side.end)
		case side.end.Port() != 0:
			fmt.Fprintf(&s, " %s port %d", side.name, side.end.Port())
		}
	}
	if f.Unanswered {
		s.WriteString(" unanswered")
	}
	return s.String()
}

// Match reports whether the filter selects the entry.
func (f Filter) Match(e Entry) bool {
	return (f.Family == 0 || e.Family() == f.Family) && (f.Protocol == 0 || e.Protocol == f.Protocol) &&
		(!f.Unanswered || !e.Answered()) && matchEnd(f.OrigDst, e.OrigDst) && matchEnd(f.ReplySrc, e.ReplySrc)
}

func matchEnd(want, have netip.AddrPort) bool {
	if want.Addr().IsValid() && want.Addr() != have.Addr() {
		return false
	}
	return want.Port() == 0 || want.Port() == have.Port()
}
