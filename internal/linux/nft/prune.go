package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nl"
)

// Cut lists what to delete from a table: single rules, and chains with all their rules.
type Cut struct {
	Table  Table
	Handle uint64 // of the table (Outline.Handle)
	Rules  []ChainRule
	Chains []string
}

// ChainRule is a rule of a chain.
type ChainRule struct {
	Chain string
	RuleOutline
}

// Prune deletes the cuts, all of them or nothing. It fails if one of the objects does not exist, or if a
// table was deleted and created since it was listed: its rules have new handles, which may be those of other
// rules before. The error is EBUSY if a rule that stays jumps to one of the chains. Within a table the
// kernel never uses a handle twice, so other programs may write meanwhile, even without a pause.
func (c *Conn) Prune(ctx context.Context, cuts []Cut) error {
	n := 0
	for _, cut := range cuts {
		n += len(cut.Rules) + len(cut.Chains)
	}
	if n == 0 {
		return nil
	}
	if err := c.attempt(ctx, func() error { return c.prune(ctx, cuts) }); err != nil {
		return errors.Join(ctx.Err(), fmt.Errorf("delete %d rules and chains of nf_tables: %w", n, err), c.redial())
	}
	return nil
}

// prune deletes right after it compared the tables, so that a program that writes without pause leaves
// enough time between two of its transactions.
func (c *Conn) prune(ctx context.Context, cuts []Cut) error {
	const attempts = 100
	var err error
	for range attempts {
		var generation uint32
		if generation, err = c.generation(); err != nil {
			return err
		}
		if err = c.compareTables(cuts); err == nil {
			err = c.deleteAt(generation, cuts)
		}
		interrupted := errors.Is(err, unix.ERESTART) || errors.Is(err, unix.EINTR)
		if ctx.Err() != nil || !interrupted {
			return err
		}
	}
	return err
}

// errRecreated is the error of a table that is not the one that was listed.
var errRecreated = errors.New("the table was deleted and created again")

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
			return fmt.Errorf("%s: %w", cut.Table, errRecreated)
		}
	}
	return nil
}

// deleteAt deletes all or nothing. It returns ERESTART if the generation has changed.
func (c *Conn) deleteAt(generation uint32, cuts []Cut) error {
	c.x.deletions(generation, cuts)
	const envelope = 4 << 10 // bytes around the messages, at most
	if err := c.sock.SetWriteBuffer(len(c.x.request) + envelope); err != nil {
		return fmt.Errorf("size netlink send buffer: %w", err)
	}
	err := c.x.doBatch()
	if errors.Is(err, unix.EMSGSIZE) {
		return fmt.Errorf("%w: the kernel grants no larger send buffer without CAP_NET_ADMIN outside of this user "+
			"namespace; raise net.core.wmem_max to %d", err, len(c.x.request))
	}
	return err
}

// deletions begins a transaction: rules first, then all rules of chains, then chains, so that no rule jumps
// to a missing chain.
func (x *exchange) deletions(generation uint32, cuts []Cut) {
	const forGeneration = 1 // NFNL_BATCH_GENID
	x.beginBatch()
	x.uint32(forGeneration, generation)
	rules := func(t Table, chain string) {
		x.about(t, unix.NFT_MSG_DELRULE, 0)
		x.text(unix.NFTA_RULE_CHAIN, chain)
	}
	for _, cut := range cuts {
		for _, r := range cut.Rules {
			rules(cut.Table, r.Chain)
			x.request = nl.Append(x.request, unix.NFTA_RULE_HANDLE, binary.BigEndian.AppendUint64(nil, r.Handle))
		}
	}
	for _, cut := range cuts {
		for _, chain := range cut.Chains {
			rules(cut.Table, chain)
		}
	}
	for _, cut := range cuts {
		for _, chain := range cut.Chains {
			x.about(cut.Table, unix.NFT_MSG_DELCHAIN, 0)
			x.text(unix.NFTA_CHAIN_NAME, chain)
		}
	}
}

// generation returns the number of the last transaction of any program; 0: the kernel has no nf_tables.
func (c *Conn) generation() (uint32, error) {
	x := c.exchange(Table{})
	x.begin(unix.NFT_MSG_GETGEN, unix.NLM_F_ACK)
	generation, err := x.readNumber(unix.NFTA_GEN_ID)
	if absent(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read generation of nf_tables: %w", err)
	}
	return generation, nil
}
