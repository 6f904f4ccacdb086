package xtables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	patience  = 60 * time.Second // for one answer of the kernel
	leastRoom = 64 << 10         // bytes of a transaction
	envelope  = 4 << 10          // bytes, more than the marks around it
)

// nftSocket talks to nf_tables.
type nftSocket struct{ *netlink.Conn }

// openNFT opens a socket; ok is false if the kernel has no nfnetlink.
func openNFT() (s nftSocket, ok bool, err error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nftSocket{}, false, nil
	}
	if err != nil {
		return nftSocket{}, false, fmt.Errorf("open netlink socket to nf_tables: %w", err)
	}
	s = nftSocket{conn}
	return s, true, s.askForLargeAnswers()
}

// askForLargeAnswers makes the kernel list in pieces of 32 KB, the most it does:
// it remembers the largest buffer an answer was received with
// (net/netlink/af_netlink.c, netlink_recvmsg).
func (s nftSocket) askForLargeAnswers() error {
	raw, err := s.SyscallConn()
	if err != nil {
		return fmt.Errorf("reach netlink socket: %w", err)
	}
	m := make([]byte, 32<<10)
	binary.NativeEndian.PutUint32(m[0:], unix.NLMSG_HDRLEN+nfgenLen)
	binary.NativeEndian.PutUint16(m[4:], unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN)
	binary.NativeEndian.PutUint16(m[6:], unix.NLM_F_REQUEST)
	var ioErr error
	err = raw.Control(func(fd uintptr) {
		ioErr = unix.Sendto(int(fd), m[:unix.NLMSG_HDRLEN+nfgenLen], 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if ioErr == nil {
			_, _, ioErr = unix.Recvfrom(int(fd), m, 0)
		}
	})
	if err = errors.Join(err, ioErr); err != nil {
		return fmt.Errorf("ask nf_tables for its generation: %w", err)
	}
	return nil
}

// nftTables lists the tables of the nft variant.
func nftTables(ctx context.Context) ([]Table, error) {
	s, ok, err := openNFT()
	if err != nil || !ok {
		return nil, err
	}
	defer func() { _ = s.Close() }() // nothing was written
	var tables []Table
	for _, f := range []Family{IPv4, IPv6} {
		err := repeat(ctx, func() error {
			of, err := s.tables(f)
			if err == nil {
				tables = append(tables, of...)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("list nf_tables: %w", err)
		}
	}
	return tables, nil
}

// repeat runs list until nobody changes what is listed meanwhile.
func repeat(ctx context.Context, list func() error) error {
	var err error
	for range attempts {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err = list(); !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return fmt.Errorf("disturbed %d times: %w", attempts, err)
}

func (s nftSocket) tables(f Family) ([]Table, error) {
	var tables []Table
	err := s.list(unix.NFT_MSG_GETTABLE, f, nil, func(m []byte) error {
		o, err := decodeTable(m)
		if slices.Contains(nftNames(), o.table) {
			tables = append(tables, Table{TableID: TableID{Variant: NFT, Family: f, Name: o.table}})
		}
		return err
	})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) { // the kernel has no nf_tables
		return nil, nil
	}
	if err != nil || len(tables) == 0 {
		return nil, err
	}
	index := make(map[[2]string]*Chain)
	if err := s.chains(f, tables); err != nil {
		return nil, err
	}
	for i := range tables {
		for j := range tables[i].Chains {
			chain := &tables[i].Chains[j]
			index[[2]string{tables[i].Name, chain.Name}] = chain
		}
	}
	for _, t := range tables {
		if err := s.rules(t.TableID, index); err != nil {
			return nil, err
		}
	}
	return tables, nil
}

// chains adds their chains to the tables.
func (s nftSocket) chains(f Family, tables []Table) error {
	return s.list(unix.NFT_MSG_GETCHAIN, f, nil, func(m []byte) error {
		o, err := decodeChain(m)
		for i := range tables {
			if tables[i].Name == o.table {
				tables[i].Chains = append(tables[i].Chains, Chain{Name: o.chain, Builtin: o.hooked})
			}
		}
		return err
	})
}

// rules adds the rules of one table to its chains.
func (s nftSocket) rules(t TableID, index map[[2]string]*Chain) error {
	ae := netlink.NewAttributeEncoder()
	ae.String(unix.NFTA_RULE_TABLE, t.Name)
	attrs, err := ae.Encode()
	if err != nil {
		return fmt.Errorf("encode message: %w", err)
	}
	return s.list(unix.NFT_MSG_GETRULE, t.Family, attrs, func(m []byte) error {
		o, err := decodeRule(m)
		if err != nil {
			return fmt.Errorf("understand rule %d of %s: %w", o.rule.ID, t, err)
		}
		chain, ok := index[[2]string{o.table, o.chain}]
		if !ok || o.table != t.Name { // older kernels list all tables of the family
			return nil
		}
		chain.Rules = append(chain.Rules, o.rule)
		return nil
	})
}

// list calls fn for each message of a listing.
func (s nftSocket) list(number int, f Family, attrs []byte, fn func([]byte) error) error {
	if err := s.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	_, err := s.Send(netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | number),
			Flags: netlink.Request | netlink.Dump,
		},
		Data: append(nfgen(nftFamily(f)), attrs...),
	})
	if err != nil {
		return err
	}
	var bad error
	for m, err := range s.ReceiveIter() {
		if err != nil {
			return err
		}
		if m.Header.Flags&netlink.DumpInterrupted != 0 {
			bad = unix.EINTR
		}
		if bad == nil {
			bad = fn(m.Data)
		}
	}
	return bad
}

// removeNFT changes all tables in one transaction. Where the kernel does not
// let us have the room, without privilege outside of our user namespace, it
// takes several.
func removeNFT(ctx context.Context, removals []Removal) error {
	if len(removals) == 0 {
		return nil
	}
	err := repeat(ctx, func() error {
		tables, err := nftTables(ctx)
		if err != nil {
			return err
		}
		messages, err := plan(tables, removals)
		if err != nil || len(messages) == 0 {
			return err
		}
		s, _, err := openNFT()
		if err != nil {
			return err
		}
		defer func() { _ = s.Close() }() // the transaction is done, or was refused
		return s.commit(messages)
	})
	if errors.Is(err, unix.EBUSY) { // something else than a rule leads there, or a rule that is new
		err = errors.Join(ErrInUse, err)
	}
	return err
}

// plan returns what to tell the kernel.
func plan(tables []Table, removals []Removal) ([]netlink.Message, error) {
	var messages []netlink.Message
	for _, r := range removals {
		for _, t := range tables {
			if t.TableID != r.Table {
				continue
			}
			c, err := r.cut(t)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", t.TableID, err)
			}
			changes, err := c.changes(t)
			if err != nil {
				return nil, err
			}
			messages = append(messages, changes...)
		}
	}
	return messages, nil
}

// commit sends the messages, in as few transactions as possible.
func (s nftSocket) commit(messages []netlink.Message) error {
	size := envelope
	for _, m := range messages {
		size += unix.NLMSG_HDRLEN + len(m.Data)
	}
	if err := s.SetWriteBuffer(size); err != nil {
		return fmt.Errorf("size netlink send buffer: %w", err)
	}
	room, err := s.WriteBuffer()
	if err != nil {
		return fmt.Errorf("read size of netlink send buffer: %w", err)
	}
	room = max(room-envelope, leastRoom)
	for len(messages) > 0 {
		n, size := 0, 0
		for ; n < len(messages); n++ {
			if size += unix.NLMSG_HDRLEN + len(messages[n].Data); size > room {
				break
			}
		}
		if err := s.transaction(messages[:n]); err != nil {
			return fmt.Errorf("commit %d changes to nf_tables: %w", n, err)
		}
		messages = messages[n:]
	}
	return nil
}

// transaction carries messages out, all or none. Only the last is
// acknowledged: the kernel answers after it has done them all, and refusals
// come first.
func (s nftSocket) transaction(messages []netlink.Message) error {
	messages = slices.Clone(messages)
	messages[len(messages)-1].Header.Flags |= netlink.Acknowledge
	mark := func(number netlink.HeaderType) []netlink.Message {
		return []netlink.Message{{Header: netlink.Header{Type: number, Flags: netlink.Request}, Data: batchMark()}}
	}
	batch := slices.Concat(mark(unix.NFNL_MSG_BATCH_BEGIN), messages, mark(unix.NFNL_MSG_BATCH_END))
	if err := s.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := s.SendMessages(batch); err != nil {
		return err
	}
	_, err := s.Receive()
	return err
}
