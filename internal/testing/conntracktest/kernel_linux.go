package conntracktest

import (
	"context"
	"encoding/binary"
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
	_, err := k.conn.Execute(context.Background(), nl.Request{
		Type: unix.NFNL_SUBSYS_CTNETLINK << 8, Flags: netlink.Acknowledge | netlink.Create | netlink.Excl,
		Header: []byte{family, 0, 0, 0},
		Encode: func(ae *netlink.AttributeEncoder) {
			ae.ByteOrder = binary.BigEndian
			nest(ae, tupleOrig, tuple{e.Protocol, e.OrigSrc, e.OrigDst}.encode)
			nest(ae, tupleReply, tuple{e.Protocol, e.OrigDst, e.OrigSrc}.encode)
			ae.Uint32(timeout, life)
			if e.Answered() {
				ae.Uint32(status, uint32(conntrack.Answered|confirmed))
			}
			if e.State != 0 {
				encodeState(ae, e)
			}
			if e.Zone != 0 {
				ae.Uint16(zone, e.Zone)
			}
			if e.ReplySrc != e.OrigDst {
				encodeNAT(ae, natDst, e.ReplySrc)
			}
			if e.ReplyDst != e.OrigSrc {
				encodeNAT(ae, natSrc, e.ReplyDst)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("create conntrack entry %s: %w", e, err)
	}
	return nil
}

func nest(ae *netlink.AttributeEncoder, typ uint16, fill func(*netlink.AttributeEncoder)) {
	ae.Nested(typ, func(inner *netlink.AttributeEncoder) error {
		inner.ByteOrder = binary.BigEndian
		fill(inner)
		return nil
	})
}

// tuple is one direction of an entry.
type tuple struct {
	protocol uint8
	src, dst netip.AddrPort
}

func (t tuple) encode(ae *netlink.AttributeEncoder) {
	srcType, dstType := uint16(1), uint16(2)
	if t.src.Addr().Is6() {
		srcType, dstType = 3, 4
	}
	nest(ae, tupleIP, func(ae *netlink.AttributeEncoder) {
		ae.Bytes(srcType, t.src.Addr().AsSlice())
		ae.Bytes(dstType, t.dst.Addr().AsSlice())
	})
	nest(ae, tupleProto, func(ae *netlink.AttributeEncoder) {
		ae.Uint8(protoNum, t.protocol)
		ae.Uint16(protoSrcPort, t.src.Port())
		ae.Uint16(protoDest, t.dst.Port())
	})
}

func encodeState(ae *netlink.AttributeEncoder, e conntrack.Entry) {
	nest(ae, protoInfo, func(ae *netlink.AttributeEncoder) {
		if e.Protocol == conntrack.TCP {
			nest(ae, infoTCP, func(ae *netlink.AttributeEncoder) { ae.Uint8(state, uint8(e.State)) })
			return
		}
		nest(ae, infoSCTP, func(ae *netlink.AttributeEncoder) {
			ae.Uint8(state, uint8(e.State))
			ae.Uint32(vtagOrig, 1)
			ae.Uint32(vtagReply, 1)
		})
	})
}

// encodeNAT encodes a translation, from which the kernel derives the addresses of answers.
func encodeNAT(ae *netlink.AttributeEncoder, typ uint16, to netip.AddrPort) {
	minimum, maximum := uint16(1), uint16(2)
	if to.Addr().Is6() {
		minimum, maximum = 4, 5
	}
	nest(ae, typ, func(ae *netlink.AttributeEncoder) {
		ae.Bytes(minimum, to.Addr().AsSlice())
		ae.Bytes(maximum, to.Addr().AsSlice())
		nest(ae, natProto, func(ae *netlink.AttributeEncoder) {
			ae.Uint16(natPortMin, to.Port())
			ae.Uint16(natPortMax, to.Port())
		})
	})
}
