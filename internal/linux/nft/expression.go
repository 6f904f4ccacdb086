package nft

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nl"
)

// The kernel sends the direction of a connection in one byte; the library wants four, and refuses the whole rule of
// another program. So Ct is decoded here, and rules are listed here.

// marshal encodes an expression.
func marshal(f Family, e expr.Any) ([]byte, error) {
	if fwd, is := e.(*forward); is {
		return fwd.attributes(), nil
	}
	return expr.Marshal(byte(f), e)
}

// rules lists the rules of a chain as canonical prints them.
func (x *exchange) rules(chain string) (rules []string, err error) {
	x.begin(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP)
	x.text(unix.NFTA_RULE_CHAIN, chain)
	err = x.do(func(m netlink.Message) error {
		return nl.Walk(m.Data[nfgenHeader:], func(typ uint16, data []byte) error {
			if typ != unix.NFTA_RULE_EXPRESSIONS {
				return nil
			}
			var rule strings.Builder
			err := nl.Walk(data, func(_ uint16, data []byte) error { return readExpression(&rule, x.table.Family, data) })
			rules = append(rules, rule.String())
			return err
		})
	})
	return rules, err
}

// readExpression prints an expression that the kernel sent.
func readExpression(to *strings.Builder, f Family, data []byte) error {
	name := ""
	return nl.Walk(data, func(typ uint16, data []byte) error {
		switch typ {
		case unix.NFTA_EXPR_NAME: // comes before the data
			name = strings.TrimSuffix(string(data), "\x00")
		case unix.NFTA_EXPR_DATA:
			e, err := unmarshal(f, name, data)
			if err != nil {
				return fmt.Errorf("expression %s: %w", name, err)
			}
			if e == nil {
				fmt.Fprintf(to, "%s %x;", name, data)
				return nil
			}
			to.WriteString(canonical([]expr.Any{e}))
		}
		return nil
	})
}

// unmarshal decodes an expression; nil: rules of Sluice have none of this name.
func unmarshal(f Family, name string, data []byte) (expr.Any, error) {
	e := map[string]expr.Any{
		"meta": &expr.Meta{}, "payload": &expr.Payload{}, "cmp": &expr.Cmp{}, "bitwise": &expr.Bitwise{},
		"lookup": &expr.Lookup{}, "dynset": &expr.Dynset{}, "counter": &expr.Counter{}, "immediate": &expr.Immediate{},
		"nat": &expr.NAT{}, "masq": &expr.Masq{}, "reject": &expr.Reject{}, "fib": &expr.Fib{},
		"numgen": &expr.Numgen{}, "hash": &expr.Hash{}, "ct": &expr.Ct{},
	}[name]
	if e == nil {
		return nil, nil
	}
	if ct, is := e.(*expr.Ct); is {
		return ct, nl.Walk(data, func(typ uint16, data []byte) error { return unmarshalCt(ct, typ, data) })
	}
	err := expr.Unmarshal(byte(f), data, e)
	if to, is := e.(*expr.Immediate); is && err == nil && to.Register == unix.NFT_REG_VERDICT && len(to.Data) == 0 {
		e = &expr.Verdict{}
		err = expr.Unmarshal(byte(f), data, e)
	}
	return e, err
}

func unmarshalCt(ct *expr.Ct, typ uint16, data []byte) error {
	switch {
	case typ == unix.NFTA_CT_DIRECTION && len(data) == 1:
		ct.Direction = uint32(data[0])
	case len(data) != 4:
		return fmt.Errorf("attribute %d has %d bytes", typ, len(data))
	case typ == unix.NFTA_CT_KEY:
		ct.Key = expr.CtKey(binary.BigEndian.Uint32(data))
	case typ == unix.NFTA_CT_DREG, typ == unix.NFTA_CT_SREG:
		ct.Register, ct.SourceRegister = binary.BigEndian.Uint32(data), typ == unix.NFTA_CT_SREG
	}
	return nil
}
