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
	patience  = 60 * time.Second // for all that is asked through one socket
	leastRoom = 64 << 10         // bytes of a transaction
	envelope  = 4 << 10          // bytes, more than the marks around it
)

// nftSocket talks to nf_tables.
type nftSocket struct{ *netlink.Conn }

// openNFT opens a socket; ok is false if the kernel has no nfnetlink.
func openNFT(netns int) (s nftSocket, ok bool, err error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: netns})
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nftSocket{}, false, nil
	}
	if err != nil {
		return nftSocket{}, false, fmt.Errorf("open netlink socket to nf_tables: %w", err)
	}
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return nftSocket{}, false, errors.Join(err, conn.Close())
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
func nftTables(ctx context.Context, netns int) ([]Table, error) {
	s, ok, err := openNFT(netns)
	if err != nil || !ok {
		return nil, err
	}
	defer func() { _ = s.Close() }() // nothing was written
	var tables []Table
	err = repeat(ctx, func() error {
		var err error
		tables, err = s.tables(ctx, nil)
		return err
	})
	return tables, err
}

// repeat runs list until nobody changes what is listed meanwhile. Who writes a
// lot is given ever more time to come to an end.
func repeat(ctx context.Context, list func() error) error {
	var err error
	for i := range attempts {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err = list(); !disturbed(err) {
			return err
		}
		backOff(ctx, i)
	}
	return fmt.Errorf("disturbed %d times: %w", attempts, err)
}

// backOff waits before another attempt, each time twice as long, at most until
// the context ends.
func backOff(ctx context.Context, attempt int) {
	timer := time.NewTimer(min(firstPause<<attempt, lastPause))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// disturbed reports whether somebody changed the rules while we looked.
func disturbed(err error) bool {
	return errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ERESTART)
}

// absent reports whether an error means that the kernel has no nf_tables.
func absent(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)
}

// tables lists all tables, but of the chains that are to be left out only the
// names.
func (s nftSocket) tables(ctx context.Context, without map[TableID]map[string]bool) ([]Table, error) {
	var all []Table
	for _, f := range []Family{IPv4, IPv6} {
		tables, err := s.family(f)
		if err != nil {
			return nil, fmt.Errorf("list tables of nf_tables: %w", err)
		}
		for _, t := range tables {
			for i := range t.Chains {
				if without[t.TableID][t.Chains[i].Name] {
					continue
				}
				if err := ctx.Err(); err != nil {
					return nil, err
				}
				if err := s.rules(t.TableID, &t.Chains[i]); err != nil {
					return nil, fmt.Errorf("list rules of %s %s: %w", t.TableID, t.Chains[i].Name, err)
				}
			}
		}
		all = append(all, tables...)
	}
	return all, nil
}

// family lists tables and their chains.
func (s nftSocket) family(f Family) ([]Table, error) {
	var tables []Table
	err := s.list(unix.NFT_MSG_GETTABLE, f, nil, func(m []byte) error {
		o, err := decodeTable(m)
		if slices.Contains(nftNames(), o.table) {
			tables = append(tables, Table{TableID: TableID{Variant: NFT, Family: f, Name: o.table}})
		}
		return err
	})
	if absent(err) {
		return nil, nil
	}
	if err != nil || len(tables) == 0 {
		return nil, err
	}
	return tables, s.list(unix.NFT_MSG_GETCHAIN, f, nil, func(m []byte) error {
		o, err := decodeChain(m)
		for i := range tables {
			if tables[i].Name == o.table {
				tables[i].Chains = append(tables[i].Chains, Chain{Name: o.chain, Builtin: o.hooked})
			}
		}
		return err
	})
}

// rules adds the rules of one chain. The kernel starts a listing of a table from
// its beginning for each piece of the answer, so chain by chain is faster.
func (s nftSocket) rules(t TableID, chain *Chain) error {
	ae := netlink.NewAttributeEncoder()
	ae.String(unix.NFTA_RULE_TABLE, t.Name)
	ae.String(unix.NFTA_RULE_CHAIN, chain.Name)
	attrs, err := ae.Encode()
	if err != nil {
		return fmt.Errorf("encode message: %w", err)
	}
	return s.list(unix.NFT_MSG_GETRULE, t.Family, attrs, func(m []byte) error {
		o, err := decodeRule(m)
		if err != nil {
			return fmt.Errorf("understand rule %d: %w", o.rule.ID, err)
		}
		if o.table == t.Name && o.chain == chain.Name { // old kernels list more
			chain.Rules = append(chain.Rules, o.rule)
		}
		return nil
	})
}

// list calls fn for each message of a listing.
func (s nftSocket) list(number int, f Family, attrs []byte, fn func([]byte) error) error {
	_, err := s.Send(netlink.Message{
		Header: header(number, netlink.Dump),
		Data:   append(nfgen(nftFamily(f)), attrs...),
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
func removeNFT(ctx context.Context, netns int, removals []Removal) error {
	if len(removals) == 0 {
		return nil
	}
	s, ok, err := openNFT(netns)
	if err != nil || !ok {
		return err
	}
	defer func() { _ = s.Close() }() // the transaction is done, or was refused
	err = repeat(ctx, func() error { return s.try(ctx, removals) })
	if errors.Is(err, unix.EBUSY) { // something else than a rule leads there
		err = fmt.Errorf("%w: %w", ErrInUse, err)
	}
	return err
}

// try removes, unless anything changes meanwhile: a handle may be that of
// another rule when a table was made anew.
func (s nftSocket) try(ctx context.Context, removals []Removal) error {
	going := make(map[TableID]map[string]bool)
	for _, r := range removals {
		if going[r.Table] == nil {
			going[r.Table] = make(map[string]bool, len(r.Chains))
		}
		for _, chain := range r.Chains {
			going[r.Table][chain] = true
		}
	}
	generation, err := s.generation()
	if err != nil {
		return err
	}
	tables, err := s.tables(ctx, going)
	if err != nil {
		return err
	}
	messages, err := plan(tables, removals)
	if err != nil || len(messages) == 0 {
		return err
	}
	return s.commit(generation, messages)
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
func (s nftSocket) commit(generation uint32, messages []netlink.Message) error {
	size := envelope
	for _, m := range messages {
		size += length(m)
	}
	if err := s.SetWriteBuffer(size); err != nil {
		return fmt.Errorf("size netlink send buffer: %w", err)
	}
	room, err := s.WriteBuffer()
	if err != nil {
		return fmt.Errorf("read size of netlink send buffer: %w", err)
	}
	for _, portion := range portions(messages, max(room-envelope, leastRoom)) {
		if err := s.transaction(generation, portion); err != nil {
			return fmt.Errorf("commit %d changes to nf_tables: %w", len(portion), err)
		}
		generation++ // by what we did
	}
	return nil
}

// transaction carries messages out, all or none, and none if the generation is
// another. Only the last is acknowledged: the kernel answers after it has done
// them all, and refusals come first.
func (s nftSocket) transaction(generation uint32, messages []netlink.Message) error {
	messages = slices.Clone(messages)
	messages[len(messages)-1].Header.Flags |= netlink.Acknowledge
	begin, end, err := envelopes(generation)
	if err != nil {
		return err
	}
	batch := slices.Concat([]netlink.Message{begin}, messages, []netlink.Message{end})
	if _, err := s.SendMessages(batch); err != nil {
		return err
	}
	_, err = s.Receive()
	return err
}

// generation returns the number of the last transaction of anybody.
func (s nftSocket) generation() (uint32, error) {
	if _, err := s.Send(netlink.Message{Header: header(unix.NFT_MSG_GETGEN, 0), Data: nfgen(unix.AF_UNSPEC)}); err != nil {
		return 0, err
	}
	answer, err := s.Receive()
	if absent(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read generation of nf_tables: %w", err)
	}
	return decodeGeneration(answer[0].Data)
}
