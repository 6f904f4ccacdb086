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
	all := deletions(cuts)
	if len(all) == 0 {
		return nil
	}
	if err := c.attempt(ctx, func() error { return c.deleteAll(ctx, all, cuts) }); err != nil {
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
		err := c.dump(unix.NFT_MSG_GETTABLE, Table{Family: f}, "", func(o object) { now[o.table] = o.handle })
		if err != nil && !absent(err) {
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

// deletion deletes a rule, all rules of a chain, or a chain.
type deletion struct {
	kind   uint16
	table  Table
	chain  string
	handle uint64 // 0: all rules
}

// deletions returns what the cuts delete: first single rules, then all rules of chains, then chains.
func deletions(cuts []Cut) []deletion {
	var rules, flushes, chains []deletion
	for _, cut := range cuts {
		for _, r := range cut.Rules {
			rules = append(rules, deletion{unix.NFT_MSG_DELRULE, cut.Table, r.Chain, r.Handle})
		}
		for _, chain := range cut.Chains {
			flushes = append(flushes, deletion{unix.NFT_MSG_DELRULE, cut.Table, chain, 0})
			chains = append(chains, deletion{unix.NFT_MSG_DELCHAIN, cut.Table, chain, 0})
		}
	}
	return slices.Concat(rules, flushes, chains)
}

// bytes returns at least the size of the message.
func (d deletion) bytes() int { return 64 + len(d.table.Name) + len(d.chain) }

func (d deletion) appendTo(x *exchange) {
	x.about(d.table, d.kind, 0)
	if d.kind == unix.NFT_MSG_DELCHAIN {
		x.text(unix.NFTA_CHAIN_NAME, d.chain)
		return
	}
	x.text(unix.NFTA_RULE_CHAIN, d.chain)
	if d.handle != 0 {
		x.request = nl.Append(x.request, unix.NFTA_RULE_HANDLE, string(binary.BigEndian.AppendUint64(nil, d.handle)))
	}
}

// deleteAll deletes in as few transactions as possible.
func (c *Conn) deleteAll(ctx context.Context, all []deletion, cuts []Cut) error {
	const envelope, leastRoom = 4 << 10, 64 << 10 // bytes: at most, around the messages; of any transaction
	size := envelope
	for _, d := range all {
		size += d.bytes()
	}
	if err := c.sock.SetWriteBuffer(size); err != nil {
		return fmt.Errorf("size netlink send buffer: %w", err)
	}
	room, err := c.sock.WriteBuffer()
	if err != nil {
		return fmt.Errorf("read size of netlink send buffer: %w", err)
	}
	for _, portion := range portions(all, max(room-envelope, leastRoom)) {
		if err := c.deleteSoon(ctx, portion, cuts); err != nil {
			return fmt.Errorf("commit %d deletions to nf_tables: %w", len(portion), err)
		}
	}
	return nil
}

// deleteSoon deletes all or nothing, in a transaction right after it compared the tables, so that a
// program that writes without pause leaves enough time between two of its transactions.
func (c *Conn) deleteSoon(ctx context.Context, some []deletion, cuts []Cut) error {
	const attempts = 100
	var err error
	for range attempts {
		var generation uint32
		if generation, err = c.generation(); err != nil {
			return err
		}
		if err = c.compareTables(cuts); err == nil {
			err = c.deleteAt(generation, some)
		}
		interrupted := errors.Is(err, unix.ERESTART) || errors.Is(err, unix.EINTR)
		if ctx.Err() != nil || !interrupted {
			return err
		}
	}
	return err
}

// deleteAt deletes all or nothing. It returns ERESTART if the generation has changed.
func (c *Conn) deleteAt(generation uint32, some []deletion) error {
	const forGeneration = 1 // NFNL_BATCH_GENID
	c.x.beginBatch()
	c.x.request = nl.Append(c.x.request, forGeneration, string(binary.BigEndian.AppendUint32(nil, generation)))
	for _, d := range some {
		d.appendTo(c.x)
	}
	return c.x.doBatch()
}

// generation returns the number of the last transaction of any program.
func (c *Conn) generation() (uint32, error) {
	generation, found := uint32(0), false
	x := c.exchange(Table{})
	x.begin(unix.NFT_MSG_GETGEN, unix.NLM_F_ACK)
	err := x.do(func(m netlink.Message) error {
		return nl.Decode(m, binary.BigEndian, func(ad *netlink.AttributeDecoder) {
			if ad.Type() == unix.NFTA_GEN_ID {
				generation, found = ad.Uint32(), true
			}
		})
	})
	if absent(err) {
		return 0, nil
	}
	if err == nil && !found {
		err = errors.New("the kernel does not report it")
	}
	if err != nil {
		return 0, fmt.Errorf("read generation of nf_tables: %w", err)
	}
	return generation, nil
}

// portions divides deletions into as few parts of so many bytes as possible. Each alone fits.
func portions(all []deletion, room int) [][]deletion {
	var parts [][]deletion
	start, size := 0, 0
	for i, d := range all {
		if size += d.bytes(); size > room && i > start {
			parts = append(parts, all[start:i])
			start, size = i, d.bytes()
		}
	}
	return append(parts, all[start:])
}
