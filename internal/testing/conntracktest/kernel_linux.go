package conntracktest

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
	"github.com/sluice-proxy/sluice/internal/linux/nl"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// Kernel is the table of a network namespace, to which tests add entries.
type Kernel struct {
	*conntrack.Table
	conn *nl.Conn
}

// Open opens the table of a new namespace.
func Open(t testing.TB) *Kernel {
	t.Helper()
	netns := kerneltest.Namespace(t)
	table, err := conntrack.Open(netns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := table.Close(); err != nil {
			t.Error(err)
		}
	})
	conn, err := nl.Dial(netns, unix.NETLINK_NETFILTER)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &Kernel{table, conn}
}

// Attribute types of nfnetlink_conntrack.h.
const (
	tupleOrig, tupleReply, status, protoInfo, natSrc, timeout, natDst, zone = 1, 2, 3, 4, 6, 7, 13, 18

	tupleIP, tupleProto               = 1, 2
	protoNum, protoSrcPort, protoDest = 1, 2, 3
	infoTCP, infoSCTP                 = 1, 3
	state, vtagOrig, vtagReply        = 1, 2, 3
	natProto, natPortMin, natPortMax  = 3, 1, 2
)

// Create adds an entry as a first packet would, with a timeout of one hour; or one that is
// Answered, or in a State. The kernel sets the other bits of Status and the ID.
func (k *Kernel) Create(e conntrack.Entry) error {
	const life, confirmed = 3600, 1 << 3
	family := byte(unix.AF_INET)
	if e.Family() == conntrack.IPv6 {
		family = unix.AF_INET6
	}
	to := nl.AppendNested(nil, tupleOrig, tuple{e.Protocol, e.OrigSrc, e.OrigDst}.append)
	to = nl.AppendNested(to, tupleReply, tuple{e.Protocol, e.OrigDst, e.OrigSrc}.append)
	to = nl.AppendUint32(to, timeout, life)
	if e.Answered() {
		to = nl.AppendUint32(to, status, uint32(conntrack.Answered|confirmed))
	}
	if e.State != 0 {
		to = appendState(to, e)
	}
	if e.Zone != 0 {
		to = nl.AppendUint16(to, zone, e.Zone)
	}
	if e.ReplySrc != e.OrigDst {
		to = appendNAT(to, natDst, e.ReplySrc)
	}
	if e.ReplyDst != e.OrigSrc {
		to = appendNAT(to, natSrc, e.ReplyDst)
	}
	_, err := k.conn.Execute(context.Background(), nl.Request{
		Type: unix.NFNL_SUBSYS_CTNETLINK << 8, Flags: netlink.Acknowledge | netlink.Create | netlink.Excl,
		Header: []byte{family, 0, 0, 0}, Attributes: to,
	})
	if err != nil {
		return fmt.Errorf("create conntrack entry %s: %w", e, err)
	}
	return nil
}

// tuple is one direction of an entry.
type tuple struct {
	protocol uint8
	src, dst netip.AddrPort
}

func (t tuple) append(to []byte) []byte {
	srcType, dstType := uint16(1), uint16(2)
	if t.src.Addr().Is6() {
		srcType, dstType = 3, 4
	}
	to = nl.AppendNested(to, tupleIP, func(to []byte) []byte {
		return nl.Append(nl.Append(to, srcType, t.src.Addr().AsSlice()), dstType, t.dst.Addr().AsSlice())
	})
	return nl.AppendNested(to, tupleProto, func(to []byte) []byte {
		to = nl.AppendUint8(to, protoNum, t.protocol)
		to = nl.AppendUint16(to, protoSrcPort, t.src.Port())
		return nl.AppendUint16(to, protoDest, t.dst.Port())
	})
}

func appendState(to []byte, e conntrack.Entry) []byte {
	return nl.AppendNested(to, protoInfo, func(to []byte) []byte {
		if e.Protocol == conntrack.TCP {
			return nl.AppendNested(to, infoTCP, func(to []byte) []byte { return nl.AppendUint8(to, state, uint8(e.State)) })
		}
		return nl.AppendNested(to, infoSCTP, func(to []byte) []byte {
			to = nl.AppendUint8(to, state, uint8(e.State))
			return nl.AppendUint32(nl.AppendUint32(to, vtagOrig, 1), vtagReply, 1)
		})
	})
}

// appendNAT appends a translation, from which the kernel derives the addresses of answers.
func appendNAT(to []byte, typ uint16, end netip.AddrPort) []byte {
	minimum, maximum := uint16(1), uint16(2)
	if end.Addr().Is6() {
		minimum, maximum = 4, 5
	}
	return nl.AppendNested(to, typ, func(to []byte) []byte {
		to = nl.Append(nl.Append(to, minimum, end.Addr().AsSlice()), maximum, end.Addr().AsSlice())
		return nl.AppendNested(to, natProto, func(to []byte) []byte {
			return nl.AppendUint16(nl.AppendUint16(to, natPortMin, end.Port()), natPortMax, end.Port())
		})
	})
}
