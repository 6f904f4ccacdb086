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

// Refusals calls fn with each TCP connection that ended before it was answered, by a reset of the server
// (nf_conntrack_proto_tcp.c: an entry whose only answer is a reset ends at once), until the context ends; then it
// returns nil. It calls subscribed once no later refusal can be missed, except those of connections that began before,
// and all if net.netfilter.nf_conntrack_events is 0. The kernel sends no other messages than these. If more come than
// are read, some are lost.
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

// unanswered is a program of a socket that receives only messages of entries without the status Answered.
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
