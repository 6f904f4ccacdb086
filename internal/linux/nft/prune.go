package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nl"
)

// Cut lists what to delete from a table: single rules, and chains with all their rules.
type Cut struct {
	Table  Table
	Handle uint64 // of the table (Outline.Handle)
	Rules  []RuleRef
	Chains []string
}

// RuleRef identifies a rule of a table.
type RuleRef struct {
	Chain  string
	Handle uint64
}

// Prune deletes the cuts, all of them or nothing. It fails if one of the objects does not exist, or if a
// table was deleted and created since it was listed: its rules have new handles, which may be those of other
// rules before. The error is EBUSY if a rule that stays jumps to one of the chains. Within a table the
// kernel never uses a handle twice, so other programs may write meanwhile, even without a pause.
//
// If the kernel does not grant the buffer, for lack of privilege outside of this user
// namespace, Prune uses several transactions. Rules that jump go first, so that no rule
// ever jumps to a missing chain.
func (c *Conn) Prune(ctx context.Context, cuts []Cut) error {
	messages, err := deletions(cuts)
	if err != nil || len(messages) == 0 {
		return err
	}
	if err = c.attempt(ctx, func() error { return c.deleteAll(ctx, messages, cuts) }); err != nil {
		return errors.Join(ctx.Err(), err, c.redial())
	}
	return nil
}

// errMadeAnew is the error of a table that is not the one that was listed.
var errMadeAnew = errors.New("the table was made anew")

// compareTables verifies that the tables of the cuts are those that were listed. The kernel never uses a
// handle twice (since Linux 4.16, nf_tables_newtable in net/netfilter/nf_tables_api.c).
func (c *Conn) compareTables(cuts []Cut) error {
	now := map[Table]uint64{}
	for _, f := range []Family{IP4, IP6} {
		if err := c.dump(unix.NFT_MSG_GETTABLE, f, nil, func(o object) { now[o.table] = o.handle }); err != nil && !absent(err) {
			return fmt.Errorf("list tables of nf_tables: %w", err)
		}
	}
	for _, cut := range cuts {
		if now[cut.Table] != cut.Handle {
			return fmt.Errorf("%s: %w", cut.Table, errMadeAnew)
		}
	}
	return nil
}

// deletions returns the messages for the cuts: first those that delete rules, then those
// that flush chains, then those that delete chains.
func deletions(cuts []Cut) ([]netlink.Message, error) {
	var rules, flushes, chains []netlink.Message
	var err error
	add := func(to *[]netlink.Message, kind int, f Family, attrs []byte, encodeErr error) {
		err = errors.Join(err, encodeErr)
		*to = append(*to, request(kind, f, attrs))
	}
	for _, cut := range cuts {
		f, table := cut.Table.Family, cut.Table.Name
		for _, r := range cut.Rules {
			attrs, e := named(table, unix.NFTA_RULE_CHAIN, r.Chain)
			handle, e2 := netlink.MarshalAttributes([]netlink.Attribute{
				{Type: unix.NFTA_RULE_HANDLE, Data: binary.BigEndian.AppendUint64(nil, r.Handle)},
			})
			add(&rules, unix.NFT_MSG_DELRULE, f, slices.Concat(attrs, handle), errors.Join(e, e2))
		}
		for _, chain := range cut.Chains {
			attrs, e := named(table, unix.NFTA_RULE_CHAIN, chain)
			add(&flushes, unix.NFT_MSG_DELRULE, f, attrs, e)
			attrs, e = named(table, unix.NFTA_CHAIN_NAME, chain)
			add(&chains, unix.NFT_MSG_DELCHAIN, f, attrs, e)
		}
	}
	return slices.Concat(rules, flushes, chains), err
}

// deleteAll sends the messages, in as few transactions as possible.
func (c *Conn) deleteAll(ctx context.Context, messages []netlink.Message, cuts []Cut) error {
	const envelope, leastRoom = 4 << 10, 64 << 10 // bytes: at most, around the messages; of any transaction
	size := envelope
	for _, m := range messages {
		size += length(m)
	}
	if err := c.sock.SetWriteBuffer(size); err != nil {
		return fmt.Errorf("size netlink send buffer: %w", err)
	}
	room, err := c.sock.WriteBuffer()
	if err != nil {
		return fmt.Errorf("read size of netlink send buffer: %w", err)
	}
	for _, portion := range portions(messages, max(room-envelope, leastRoom)) {
		if err := c.deleteSoon(ctx, portion, cuts); err != nil {
			return fmt.Errorf("commit %d deletions to nf_tables: %w", len(portion), err)
		}
	}
	return nil
}

// deleteSoon executes the messages, all or none, in a transaction right after it compared the tables, so that a
// program that writes without pause leaves enough time between two of its transactions.
func (c *Conn) deleteSoon(ctx context.Context, messages []netlink.Message, cuts []Cut) error {
	const attempts = 100
	var err error
	for range attempts {
		var generation uint32
		if generation, err = c.generation(); err != nil {
			return err
		}
		if err = c.compareTables(cuts); err == nil {
			err = c.deleteAt(generation, messages)
		}
		interrupted := errors.Is(err, unix.ERESTART) || errors.Is(err, unix.EINTR)
		if ctx.Err() != nil || !interrupted {
			return err
		}
	}
	return err
}

// deleteAt executes the messages, all or none. It returns ERESTART if the generation has
// changed. Only the last message requests an answer: the kernel sends it after it has
// executed them all, and refusals before.
func (c *Conn) deleteAt(generation uint32, messages []netlink.Message) error {
	const forGeneration = 1 // NFNL_BATCH_GENID
	head := []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES}
	condition, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: forGeneration, Data: binary.BigEndian.AppendUint32(nil, generation)},
	})
	if err != nil {
		return fmt.Errorf("encode generation: %w", err)
	}
	mark := func(kind netlink.HeaderType, data []byte) []netlink.Message {
		return []netlink.Message{{Header: netlink.Header{Type: kind, Flags: netlink.Request}, Data: data}}
	}
	messages = slices.Clone(messages)
	messages[len(messages)-1].Header.Flags |= netlink.Acknowledge
	_, err = c.sock.SendMessages(slices.Concat(
		mark(unix.NFNL_MSG_BATCH_BEGIN, slices.Concat(head, condition)), messages, mark(unix.NFNL_MSG_BATCH_END, head),
	))
	if err != nil {
		return err
	}
	_, err = c.sock.Receive()
	return err
}

// generation returns the number of the last transaction of any program.
func (c *Conn) generation() (uint32, error) {
	answer, err := c.sock.Execute(request(unix.NFT_MSG_GETGEN, unix.AF_UNSPEC, nil))
	if absent(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read generation of nf_tables: %w", err)
	}
	generation, found := uint32(0), false
	err = nl.Decode(answer[0], binary.BigEndian, func(ad *netlink.AttributeDecoder) {
		if ad.Type() == unix.NFTA_GEN_ID {
			generation, found = ad.Uint32(), true
		}
	})
	if err == nil && !found {
		err = errors.New("the kernel does not report it")
	}
	if err != nil {
		return 0, fmt.Errorf("read generation of nf_tables: %w", err)
	}
	return generation, nil
}

// request returns a message for nf_tables.
func request(kind int, f Family, attrs []byte) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: netlink.Request},
		Data:   append([]byte{byte(f), unix.NFNETLINK_V0, 0, 0}, attrs...),
	}
}

// named encodes a table and, if kind is not zero, an object in it. The name of the
// table has the same number in messages of all kinds.
func named(table string, kind uint16, name string) ([]byte, error) {
	ae := netlink.NewAttributeEncoder()
	ae.String(unix.NFTA_TABLE_NAME, table)
	if kind != 0 {
		ae.String(kind, name)
	}
	attrs, err := ae.Encode()
	if err != nil {
		return nil, fmt.Errorf("encode message: %w", err)
	}
	return attrs, nil
}

// length returns how many bytes a message takes.
func length(m netlink.Message) int { return unix.NLMSG_HDRLEN + len(m.Data) }

// portions divides messages into as few parts of so many bytes as possible. Each
// message alone fits.
func portions(messages []netlink.Message, room int) [][]netlink.Message {
	var parts [][]netlink.Message
	start, size := 0, 0
	for i, m := range messages {
		if size += length(m); size > room && i > start {
			parts = append(parts, messages[start:i])
			start, size = i, length(m)
		}
	}
	return append(parts, messages[start:])
}
