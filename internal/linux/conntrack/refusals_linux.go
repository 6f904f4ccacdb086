package conntrack

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	uapi "github.com/vishvananda/netlink/nl"
)

const (
	groupDestroy = 3 // NFNLGRP_CONNTRACK_DESTROY of nfnetlink_compat.h

	attrHeaderLen = 4 // of linux/netlink.h
)

// Refusals calls fn for each TCP connection whose first answer was a reset. The kernel deletes the entry of such a
// connection at once (nf_conntrack_proto_tcp.c). Refusals returns nil when the context ends.
//
// It calls subscribed once the subscription is active. It may miss connections that began earlier, and it ignores
// events that the kernel discards because fn is too slow. There are no events if net.netfilter.nf_conntrack_events is
// 0.
func (t *Table) Refusals(ctx context.Context, subscribed func(), fn func(Entry)) error {
	s, err := subscribe(t.netns, groupDestroy, unanswered())
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }() // nothing was written
	stop := context.AfterFunc(ctx, func() { _ = s.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	subscribed()
	for {
		part, err := s.wait()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			continue
		case err != nil:
			return fmt.Errorf("receive conntrack events: %w", err)
		}
		for m := range messages(part) {
			if e, err := decode(m.Data); err == nil && m.Header.Pid == 0 && e.Protocol == TCP && e.Remaining > 0 {
				fn(e)
			}
		}
	}
}

// unanswered returns a socket filter that accepts entries without the status Answered.
func unanswered() []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadConstant{Dst: bpf.RegX, Val: uapi.CTA_STATUS},
		bpf.LoadConstant{Dst: bpf.RegA, Val: nlmsgHeaderLen + nfgenHeaderLen},
		bpf.LoadExtension{Num: bpf.ExtNetlinkAttr}, // the offset of the attribute; 0: there is none
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 3},
		bpf.TAX{},
		bpf.LoadIndirect{Off: attrHeaderLen, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: uint32(Answered), SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.RetConstant{Val: 1 << 18},
	}
}
