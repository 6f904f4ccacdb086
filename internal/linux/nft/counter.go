package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nl"
)

// Count adds one to the counter of an element, whose timeout restarts. The set has a Timeout. If it is full, the rule
// does not match.
func Count(in string, key ...Field) Statement {
	text, exprs, _ := join(key)
	return Statement{"update @" + in + " { " + text + " counter }", append(exprs, &expr.Dynset{
		SrcRegKey: reg1, SetName: in, SetID: byName, Operation: unix.NFT_DYNSET_OP_UPDATE,
		Exprs: []expr.Any{&expr.Counter{}},
	})}
}

// LastBit matches packets whose destination address ends in the bit.
func LastBit(f Family, bit byte) Statement {
	mask, want := make([]byte, f.AddrLen()), make([]byte, f.AddrLen())
	mask[len(mask)-1], want[len(want)-1] = 1, bit
	return Statement{
		fmt.Sprintf("%s daddr & %s == %s", f, address(mask), address(want)),
		masked(Destination(f).load(reg1), mask, expr.CmpOpEq, want),
	}
}

func address(b []byte) netip.Addr {
	addr, _ := netip.AddrFromSlice(b)
	return addr
}

// Counter is an element to which Count adds.
type Counter struct {
	Key     string
	Packets uint64
	Expires time.Duration // until its timeout, unless a packet restarts that
}

// Counters calls fn for each element of a dynamic set; for none if the set does not exist. While packets add elements,
// and others time out, one may be missing, or come twice.
func (c *Conn) Counters(ctx context.Context, t Table, set string, fn func(Counter)) error {
	err := c.attempt(ctx, func() error {
		x := c.exchange(t)
		x.loose = true
		defer func() { x.loose = false }()
		return x.eachListed(set, func(e received) { fn(Counter{e.Key, e.packets, e.expires}) })
	})
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return errors.Join(ctx.Err(), fmt.Errorf("read counters of set %s in table %s: %w", set, t, err), c.redial())
}

// Found is an element of a set or map, with its counter if it has one.
type Found struct {
	Counter

	Data string
}

// Find returns those of the elements with these keys that exist, by key; none if the set or the table does not exist.
func (c *Conn) Find(ctx context.Context, t Table, set string, keys []string) (map[string]Found, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	found := map[string]Found{}
	err := c.attempt(ctx, func() error {
		for part := range slices.Chunk(keys, keysPerRequest) {
			if _, err := c.exchange(t).batch(set, part, func(e received) {
				found[e.Key] = Found{Counter{e.Key, e.packets, e.expires}, e.Data}
			}); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		return found, nil
	}
	err = fmt.Errorf("read elements of set %s in table %s: %w", set, t, err)
	return nil, errors.Join(ctx.Err(), err, c.redial())
}

// decodeCounter decodes an attribute of the expression of an element, which is a counter.
func (e *received) decodeCounter(typ uint16, data []byte) error {
	if typ != unix.NFTA_EXPR_DATA {
		return nil
	}
	return nl.Walk(data, func(typ uint16, data []byte) (err error) {
		if typ == unix.NFTA_COUNTER_PACKETS {
			e.packets, err = number(data)
		}
		return err
	})
}

// number decodes 64 bits.
func number(data []byte) (uint64, error) {
	if len(data) != 8 {
		return 0, fmt.Errorf("a number of an element has %d bytes", len(data))
	}
	return binary.BigEndian.Uint64(data), nil
}
