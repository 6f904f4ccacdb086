package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nl"
)

// Counter is an element to which Count adds.
type Counter struct {
	Key     string
	Packets uint64
	Expires time.Duration // until its timeout, unless a packet restarts that
}

// Counters lists the elements of a dynamic set; none if the set does not exist. While packets add elements, and others
// time out, one may be missing, or be listed twice.
func (c *Conn) Counters(ctx context.Context, t Table, set string) (list []Counter, err error) {
	err = c.attempt(ctx, func() error {
		x := c.exchange(t)
		x.loose = true
		defer func() { x.loose = false }()
		return x.eachListed(set, func(e received) { list = append(list, Counter{e.Key, e.packets, e.expires}) })
	})
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, nil
	case err != nil:
		return nil, errors.Join(ctx.Err(), fmt.Errorf("read counters of set %s in table %s: %w", set, t, err), c.redial())
	}
	return list, nil
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

func (e *received) decodeExpiration(data []byte) error {
	ms, err := number(data)
	e.expires = time.Duration(ms) * time.Millisecond
	return err
}

// number decodes 64 bits.
func number(data []byte) (uint64, error) {
	if len(data) != 8 {
		return 0, fmt.Errorf("a number of an element has %d bytes", len(data))
	}
	return binary.BigEndian.Uint64(data), nil
}

// Count counts packets in the counter of an element of a dynamic set, which Counters reads. Each packet restarts the
// timeout of the element. If the key does not exist and the set is full the rule does not match.
func Count(in string, timeout time.Duration, key ...Field) Statement {
	text, exprs, _ := join(key)
	update := &expr.Dynset{
		SrcRegKey: reg1, SetName: in, SetID: byName, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: timeout,
		Exprs: []expr.Any{&expr.Counter{}},
	}
	return Statement{"update @" + in + " { " + text + " timeout " + seconds(timeout) + " counter }", append(exprs, update)}
}
