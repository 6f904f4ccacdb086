package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nl"
)

// watchBuffer is how many bytes of notifications the kernel keeps for a listener. Deleting a set with 100,000 elements
// makes some 10 MB; our own deletions do not reach the buffer.
const watchBuffer = 2 << 20

// Listener receives notifications of changes to nf_tables of one network namespace.
type Listener struct{ conn *netlink.Conn }

// Listen returns a Listener to which the kernel sends every notification from now on. Receive closes it.
func Listen(netns int) (*Listener, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: netns})
	if err != nil {
		return nil, fmt.Errorf("open netlink socket to nf_tables: %w", err)
	}
	if err := conn.SetReadBuffer(watchBuffer); err != nil {
		return nil, errors.Join(fmt.Errorf("size netlink receive buffer: %w", err), conn.Close())
	}
	if err := conn.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
		return nil, errors.Join(fmt.Errorf("subscribe to changes of nf_tables: %w", err), conn.Close())
	}
	return &Listener{conn: conn}, nil
}

// Receive calls received for each message, and lost when the kernel dropped some. It returns nil when the context ends.
func (l *Listener) Receive(ctx context.Context, lost func(), received func(netlink.Message)) error {
	stop := context.AfterFunc(ctx, func() { _ = l.conn.Close() }) // wakes Receive
	defer func() {
		stop()
		_ = l.conn.Close()
	}()
	for {
		messages, err := l.conn.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			lost()
		case err != nil:
			return fmt.Errorf("wait for changes of nf_tables: %w", err)
		}
		for _, m := range messages {
			received(m)
		}
	}
}

// Ignore makes the kernel send no message that was caused through one of these netlink
// ports, in place of those of an earlier call, so that the writes of the proxy
// cost almost nothing here. It may be called while another goroutine receives.
func (l *Listener) Ignore(ports ...uint32) error {
	if len(ports) == 0 {
		return l.conn.RemoveBPF()
	}
	const portOffset = 12 // of nlmsg_pid in struct nlmsghdr
	code := []bpf.Instruction{bpf.LoadAbsolute{Off: portOffset, Size: 4}}
	for i, port := range ports {
		var order [4]byte
		binary.NativeEndian.PutUint32(order[:], port)
		code = append(code, bpf.JumpIf{
			Cond: bpf.JumpEqual, Val: binary.BigEndian.Uint32(order[:]), SkipTrue: uint8(len(ports) - i),
		})
	}
	filter, err := bpf.Assemble(append(code, bpf.RetConstant{Val: 1 << 31}, bpf.RetConstant{Val: 0}))
	if err != nil {
		return fmt.Errorf("make filter: %w", err)
	}
	return l.conn.SetBPF(filter)
}

// Author returns the program that made a new generation, and the ID of its thread in the
// first PID namespace; "" and 0 if they are not in the message.
func Author(m netlink.Message) (by string, pid uint32) {
	err := nl.Decode(m, binary.BigEndian, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.NFTA_GEN_PROC_PID:
			pid = ad.Uint32()
		case unix.NFTA_GEN_PROC_NAME:
			by = ad.String()
		}
	})
	if err != nil {
		return "", 0
	}
	return by, pid
}
