package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// watchRoom is how many bytes of notifications the kernel keeps for us: deleting
// a set with 100,000 elements makes some 10 MB, most of it in a filter of ours.
const watchRoom = 2 << 20

// Listener hears what changes in nf_tables of one network namespace.
type Listener struct{ conn *netlink.Conn }

// Listen returns a Listener that keeps what it is told from now on. Hear closes
// it.
func Listen(netns int) (*Listener, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: netns})
	if err != nil {
		return nil, fmt.Errorf("open netlink socket to nf_tables: %w", err)
	}
	if err := conn.SetReadBuffer(watchRoom); err != nil {
		return nil, errors.Join(fmt.Errorf("size netlink receive buffer: %w", err), conn.Close())
	}
	if err := conn.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
		return nil, errors.Join(fmt.Errorf("subscribe to changes of nf_tables: %w", err), conn.Close())
	}
	return &Listener{conn: conn}, nil
}

// Hear calls news for each message, and lost when the kernel had more to tell
// than it could keep. It returns nil when the context ends.
func (l *Listener) Hear(ctx context.Context, lost func(), news func(netlink.Message)) error {
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
			news(m)
		}
	}
}

// Ignore makes the kernel keep what is done through these netlink ports to
// itself, and through no others, so that our own writes cost next to nothing
// here. It may be called while another goroutine hears.
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

// Author reads who made a new generation: the name of the program and its
// thread, in the first PID namespace; empty if it is not known.
func Author(m netlink.Message) (by string, pid uint32) {
	if len(m.Data) < nfgenLen {
		return "", 0
	}
	attrs, err := netlink.UnmarshalAttributes(m.Data[nfgenLen:])
	if err != nil {
		return "", 0
	}
	for _, a := range attrs {
		switch {
		case a.Type == unix.NFTA_GEN_PROC_PID && len(a.Data) == 4:
			pid = binary.BigEndian.Uint32(a.Data)
		case a.Type == unix.NFTA_GEN_PROC_NAME:
			by = strings.TrimRight(string(a.Data), "\x00")
		}
	}
	return by, pid
}
