package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	uapi "github.com/vishvananda/netlink/nl"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nl"
)

// subscription selects events.
type subscription struct {
	group   uint32            // a multicast group of nfnetlink_compat.h
	program []bpf.Instruction // a socket filter, which may accept too much; it ends with a refusal
	keep    func(Entry) bool
	limit   int // about how many entries a call returns, so that a flood does not occupy a CPU
	buffer  int // bytes of the socket buffer
}

// SubscribeNew subscribes to new entries whose answers come from the backends, until the context ends. The returned
// function does not block. It returns up to about 1,000 entries that were added since the last call, and ErrLost if
// events were lost. The kernel sends no events if net.netfilter.nf_conntrack_events is 0.
func (t *Table) SubscribeNew(ctx context.Context, backends []netip.Addr) (func() ([]Entry, error), error) {
	const groupNew = 1
	s := subscription{group: groupNew, limit: 1000, buffer: 1 << 20}
	s.keep = func(e Entry) bool { return slices.Contains(backends, e.ReplySrc.Addr()) }
	for _, addr := range backends {
		typ, bytes := uint16(uapi.CTA_IP_V4_SRC), addr.AsSlice()
		if addr.Is6() {
			typ = uapi.CTA_IP_V6_SRC
		}
		last := len(bytes) - 4
		differs := bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(bytes[last:])}
		s.program = append(s.program, acceptUnless(differs, last, uapi.CTA_TUPLE_REPLY, uapi.CTA_TUPLE_IP, typ)...)
	}
	return t.subscribe(ctx, s)
}

// SubscribeRefused subscribes to TCP connections whose first answer was a reset. The kernel deletes the entry of such a
// connection at once (nf_conntrack_proto_tcp.c). Otherwise it is like SubscribeNew, with up to about 5,000 entries.
func (t *Table) SubscribeRefused(ctx context.Context) (func() ([]Entry, error), error) {
	const groupDestroy, senderOffset = 3, 12 // nlmsg_pid in struct nlmsghdr
	answered := bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: uint32(Answered)}
	return t.subscribe(ctx, subscription{
		group: groupDestroy, limit: 5000, buffer: 4 << 20,
		keep: func(e Entry) bool { return e.Protocol == TCP && e.Remaining > 0 },
		program: slices.Concat([]bpf.Instruction{
			bpf.LoadAbsolute{Off: senderOffset, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 1}, // the kernel deleted the entry, not a program
			bpf.RetConstant{Val: 0},
		}, acceptUnless(answered, 0, uapi.CTA_STATUS)),
	})
}

// acceptUnless returns instructions that accept a message, unless the four bytes at an offset of an attribute meet a
// condition, or it lacks the attribute. The path leads to the attribute.
func acceptUnless(met bpf.JumpIf, offset int, path ...uint16) []bpf.Instruction {
	met.SkipTrue = 1
	program := []bpf.Instruction{bpf.LoadConstant{Dst: bpf.RegA, Val: nlmsgHeaderLen + nfgenHeaderLen}}
	find := bpf.ExtNetlinkAttr
	for _, typ := range path {
		program = append(program, bpf.LoadConstant{Dst: bpf.RegX, Val: uint32(typ)}, bpf.LoadExtension{Num: find})
		find = bpf.ExtNetlinkAttrNested
	}
	return append(program,
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 4}, // there is none
		bpf.TAX{},
		bpf.LoadIndirect{Off: attrHeaderLen + uint32(offset), Size: 4}, //nolint:gosec // at most 16
		met,
		bpf.RetConstant{Val: 1 << 18},
	)
}

func (t *Table) subscribe(ctx context.Context, s subscription) (func() ([]Entry, error), error) {
	sock, err := dial(t.netns)
	if err != nil {
		return nil, err
	}
	filter, err := bpf.Assemble(append(s.program, bpf.RetConstant{Val: 0}))
	if err == nil {
		err = errors.Join(sock.SetBPF(filter), sock.SetReadBuffer(s.buffer), sock.JoinGroup(s.group))
	}
	if err != nil {
		_ = sock.Close()
		return nil, fmt.Errorf("subscribe to conntrack events: %w%s", err, remedy(err))
	}
	context.AfterFunc(ctx, func() { _ = sock.Close() })
	return func() (entries []Entry, err error) {
		for len(entries) < s.limit {
			part, err := sock.Next()
			switch {
			case errors.Is(err, unix.EAGAIN):
				return entries, nil
			case errors.Is(err, unix.ENOBUFS):
				return entries, ErrLost
			case err != nil:
				return entries, fmt.Errorf("receive conntrack events: %w", err)
			}
			for m := range nl.Messages(part) {
				if e, err := decode(m.Data); err == nil && s.keep(e) {
					entries = append(entries, e)
				}
			}
		}
		return entries, nil
	}, nil
}
