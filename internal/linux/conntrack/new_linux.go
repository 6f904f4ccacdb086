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
)

const (
	groupNew = 1    // NFNLGRP_CONNTRACK_NEW of nfnetlink_compat.h
	maxBegun = 1000 // entries that a call returns, so that a flood does not occupy a CPU
)

// SubscribeNew subscribes to new entries whose answers come from the backends, until the context ends. The returned
// function does not block. It returns up to about maxBegun entries that were added since the last call, and ErrLost if
// events were lost. The kernel sends no events if net.netfilter.nf_conntrack_events is 0.
func (t *Table) SubscribeNew(ctx context.Context, backends []netip.Addr) (func() ([]Entry, error), error) {
	s, err := subscribe(t.netns, groupNew, answeredBy(backends))
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = s.Close() })
	return func() (begun []Entry, err error) {
		for len(begun) < maxBegun {
			part, err := s.next()
			switch {
			case errors.Is(err, unix.EAGAIN):
				return begun, nil
			case errors.Is(err, unix.ENOBUFS):
				return begun, ErrLost
			case err != nil:
				return begun, fmt.Errorf("receive conntrack events: %w", err)
			}
			for m := range messages(part) {
				if e, err := decode(m.Data); err == nil && slices.Contains(backends, e.ReplySrc.Addr()) {
					begun = append(begun, e)
				}
			}
		}
		return begun, nil
	}, nil
}

// answeredBy returns a socket filter that accepts entries whose answers come from an address that has the same last
// four bytes as one of the backends.
func answeredBy(backends []netip.Addr) (program []bpf.Instruction) {
	for _, addr := range backends {
		typ, bytes := uint32(uapi.CTA_IP_V4_SRC), addr.AsSlice()
		if addr.Is6() {
			typ = uapi.CTA_IP_V6_SRC
		}
		last := len(bytes) - 4
		program = append(program,
			bpf.LoadConstant{Dst: bpf.RegA, Val: nlmsgHeaderLen + nfgenHeaderLen},
			bpf.LoadConstant{Dst: bpf.RegX, Val: uapi.CTA_TUPLE_REPLY},
			bpf.LoadExtension{Num: bpf.ExtNetlinkAttr}, // the offset of the attribute; 0: there is none
			bpf.LoadConstant{Dst: bpf.RegX, Val: uapi.CTA_TUPLE_IP},
			bpf.LoadExtension{Num: bpf.ExtNetlinkAttrNested},
			bpf.LoadConstant{Dst: bpf.RegX, Val: typ},
			bpf.LoadExtension{Num: bpf.ExtNetlinkAttrNested},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 4},
			bpf.TAX{},
			bpf.LoadIndirect{Off: uint32(attrHeaderLen + last), Size: 4}, //nolint:gosec // at most 16
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(bytes[last:]), SkipTrue: 1},
			bpf.RetConstant{Val: 1 << 18},
		)
	}
	return append(program, bpf.RetConstant{Val: 0})
}
