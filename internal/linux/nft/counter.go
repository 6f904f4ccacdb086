package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
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

// OriginalDestination is the destination address of the connection before it was translated.
func OriginalDestination(f Family) Field {
	key := expr.CtKey(ctDestination4)
	if f == IP6 {
		key = ctDestination6
	}
	return tracked("ct original "+f.String()+" daddr", key, Addr.width(f))
}

// OriginalDestinationPort is the destination port of the connection before it was translated. A PortOf must be
// before it in the key, or nft does not know the protocol and cannot load it.
func OriginalDestinationPort() Field {
	return tracked("ct original proto-dst", expr.CtKeyPROTODST, 4)
}

// PortOf is the packet's destination port in a rule that tests the protocol first (OfProtocol).
func PortOf(protocol uint8) Field {
	port := DestinationPort()
	port.text = nl.ProtocolName(protocol) + " dport"
	return port
}

// The direction of the first packet of a connection, and keys that the library does not have.
const (
	original = 0 // IP_CT_DIR_ORIGINAL

	ctDestination4 = 20 // NFT_CT_DST_IP, linux/netfilter/nf_tables.h
	ctDestination6 = 22 // NFT_CT_DST_IP6
)

func tracked(text string, key expr.CtKey, width int) Field {
	return Field{text, width, func(reg uint32) expr.Any {
		return &expr.Ct{Key: key, Register: reg, Direction: original}
	}}
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
