package nft

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nl"
)

// Rule is a list of statements.
type Rule struct {
	parts []Statement
}

// NewRule returns a rule of statements; the rule ends for a packet at the first statement that does not match.
func NewRule(parts ...Statement) Rule { return Rule{parts: parts} }

// String returns the rule as nft prints it.
func (r Rule) String() string {
	texts := make([]string, len(r.parts))
	for i, p := range r.parts {
		texts[i] = p.text
	}
	return strings.Join(texts, " ")
}

func (r Rule) exprs() []expr.Any {
	var all []expr.Any
	for _, p := range r.parts {
		all = append(all, p.exprs...)
	}
	return all
}

// Statement is a part of a rule: its text, and the expressions that the kernel runs.
type Statement struct {
	text  string
	exprs []expr.Any
}

// Registers. The kernel reports a register that starts a 16-byte one by the
// old number of that (nf_tables_api.c, nft_dump_register), so it is written in that form.
const reg1 = unix.NFT_REG_1

// at returns the register that lies n bytes after the start of register 1.
func at(n int) uint32 {
	if n%16 == 0 {
		return reg1 + uint32(n/16)
	}
	return unix.NFT_REG32_00 + uint32(n/4)
}

// Field loads one field of the packet.
type Field struct {
	text  string
	width int // bytes in a key
	load  func(reg uint32) expr.Any
}

// meta returns a field that the kernel has beside the packet.
func meta(text string, key expr.MetaKey) Field {
	return Field{text, 4, func(reg uint32) expr.Any { return &expr.Meta{Key: key, Register: reg} }}
}

// payload returns bytes of a header of the packet.
func payload(text string, base expr.PayloadBase, offset, size int) Field {
	return Field{text, max(size, 4), func(reg uint32) expr.Any {
		return &expr.Payload{DestRegister: reg, Base: base, Offset: uint32(offset), Len: uint32(size)}
	}}
}

// Source is the packet's source address.
func Source(f Family) Field {
	return payload(f.String()+" saddr", expr.PayloadBaseNetworkHeader, f.sourceAt(), Addr.width(f))
}

// Destination is the packet's destination address.
func Destination(f Family) Field {
	return payload(f.String()+" daddr", expr.PayloadBaseNetworkHeader, f.sourceAt()+Addr.width(f), Addr.width(f))
}

// sourceAt returns where the source address begins in a network header. The destination follows it.
func (f Family) sourceAt() int {
	if f == IP4 {
		return 12
	}
	return 8
}

// L4Proto is the packet's transport protocol.
func L4Proto() Field { return meta("meta l4proto", expr.MetaKeyL4PROTO) }

// SourcePort is the packet's source port.
func SourcePort() Field { return payload("th sport", expr.PayloadBaseTransportHeader, 0, 2) }

// DestinationPort is the packet's destination port.
func DestinationPort() Field { return payload("th dport", expr.PayloadBaseTransportHeader, 2, 2) }

// join loads fields one after the other from register 1 on, and returns their width in bytes.
func join(fields []Field) (text string, exprs []expr.Any, width int) {
	var texts []string
	for _, f := range fields {
		texts = append(texts, f.text)
		exprs = append(exprs, f.load(at(width)))
		width += f.width
	}
	return strings.Join(texts, " . "), exprs, width
}

// byName is the number of no set: the kernel, if it does not find one by name,
// looks for a set of the same transaction by number, and that may be zero.
const byName = ^uint32(0)

// In matches if the fields together are an element of the set.
func In(set string, fields ...Field) Statement {
	text, exprs, _ := join(fields)
	return Statement{text + " @" + set, append(exprs, &expr.Lookup{SourceRegister: reg1, SetName: set, SetID: byName})}
}

// Not negates a statement, which must end with a comparison or a look-up.
func Not(s Statement) Statement {
	last, value := len(s.exprs)-1, strings.LastIndexByte(s.text, ' ')+1
	exprs := slices.Clone(s.exprs)
	switch e := exprs[last].(type) {
	case *expr.Cmp:
		exprs[last] = &expr.Cmp{Op: expr.CmpOpNeq, Register: e.Register, Data: e.Data}
	case *expr.Lookup:
		exprs[last] = &expr.Lookup{SourceRegister: e.SourceRegister, SetName: e.SetName, SetID: e.SetID, Invert: true}
	}
	return Statement{s.text[:value] + "!= " + s.text[value:], exprs}
}

// Dispatch carries out the verdict that the map has for the fields, if it has one.
func Dispatch(verdicts string, fields ...Field) Statement {
	text, exprs, _ := join(fields)
	return Statement{text + " vmap @" + verdicts, append(exprs, lookup(verdicts, unix.NFT_REG_VERDICT))}
}

// SetPriority sets the packet's priority to the value of the map for the fields; no match
// if there is none. The priority serves as a register between two lookups.
func SetPriority(from string, fields ...Field) Statement {
	text, exprs := mapped(from, fields)
	return setPriority(text, exprs...)
}

// setPriority sets the packet's priority to what the expressions leave in register 1.
func setPriority(text string, exprs ...expr.Any) Statement {
	return Statement{
		"meta priority set " + text,
		append(exprs, &expr.Meta{Key: expr.MetaKeyPRIORITY, SourceRegister: true, Register: reg1}),
	}
}

// Draw sets the packet's priority to one of n numbers from first on, each as likely
// as the others. First is at least 1: as a priority, nft would list 0 as "none".
func Draw(first, n int) Statement {
	number := Random(first, n)
	return setPriority(number.text, number.load(reg1))
}

// Random is one of n numbers from first on, drawn each time it is loaded.
func Random(first, n int) Field {
	return Field{fmt.Sprintf("numgen random mod %d offset %d", n, first), 4, func(reg uint32) expr.Any {
		return &expr.Numgen{Register: reg, Modulus: uint32(n), Type: unix.NFT_NG_RANDOM, Offset: uint32(first)}
	}}
}

// DrawByHash sets the packet's priority to one of n numbers from first on, the same one for equal fields: a hash of
// them (linux/jhash.h).
func DrawByHash(seed uint32, first, n int, fields ...Field) Statement {
	text, exprs, width := join(fields)
	return setPriority(fmt.Sprintf("jhash %s mod %d seed 0x%x offset %d", text, n, seed, first), append(exprs, &expr.Hash{
		Type: expr.HashTypeJenkins, SourceRegister: reg1, DestRegister: reg1, Length: uint32(width),
		Modulus: uint32(n), Seed: seed, Offset: uint32(first),
	})...)
}

// UDP matches packets of UDP.
func UDP() Statement { return OfProtocol(unix.IPPROTO_UDP) }

// OfProtocol matches packets of a transport protocol.
func OfProtocol(protocol uint8) Statement {
	return equals("meta l4proto "+nl.ProtocolName(protocol), L4Proto(), []byte{protocol})
}

// Priority is the packet's priority (skb->priority).
func Priority() Field { return meta("meta priority", expr.MetaKeyPRIORITY) }

// ClearPriority sets the packet's priority to zero.
func ClearPriority() Statement {
	return setPriority("none", &expr.Immediate{Register: reg1, Data: make([]byte, 4)})
}

// TranslateFrom sends the connection to the address and port the map has for the fields; no match if there is none.
func TranslateFrom(f Family, backends string, fields ...Field) Statement {
	text, exprs := mapped(backends, fields)
	return Statement{"dnat " + f.String() + " to " + text, append(exprs, &expr.NAT{
		Type: expr.NATTypeDestNAT, Family: uint32(f), RegAddrMin: reg1, RegAddrMax: reg1,
		RegProtoMin: at(Addr.width(f)), RegProtoMax: at(Addr.width(f)), Specified: true,
	})}
}

// mapped loads what a map has for the fields into register 1.
func mapped(from string, fields []Field) (text string, exprs []expr.Any) {
	text, exprs, _ = join(fields)
	return text + " map @" + from, append(exprs, lookup(from, reg1))
}

func lookup(set string, into uint32) *expr.Lookup {
	return &expr.Lookup{SourceRegister: reg1, DestRegister: into, IsDestRegSet: true, SetName: set, SetID: byName}
}

// Goto continues in another chain and does not return.
func Goto(chain string) Statement { return verdict("goto "+chain, expr.VerdictGoto, chain) }

// Jump continues in another chain and returns at its end.
func Jump(chain string) Statement { return verdict("jump "+chain, expr.VerdictJump, chain) }

// Drop drops the packet.
func Drop() Statement { return verdict("drop", expr.VerdictDrop, "") }

func verdict(text string, kind expr.VerdictKind, chain string) Statement {
	return Statement{text, []expr.Any{&expr.Verdict{Kind: kind, Chain: chain}}}
}

// Reject answers with ICMP port unreachable (RFC 792 type 3 code 3, RFC 4443 type 1 code 4).
func Reject(f Family) Statement {
	code := uint8(3)
	if f == IP6 {
		code = 4
	}
	return Statement{"reject", []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code}}}
}

// MarkSet sets bits of the packet's mark and leaves the others.
func MarkSet(bits uint32) Statement {
	return setMark(fmt.Sprintf("meta mark set meta mark | 0x%08x", bits), ^bits, bits)
}

// MarkFlip flips bits of the packet's mark and leaves the others.
func MarkFlip(bits uint32) Statement {
	return setMark(fmt.Sprintf("meta mark set meta mark ^ 0x%08x", bits), ^uint32(0), bits)
}

func setMark(text string, mask, xor uint32) Statement {
	return Statement{text, append(bitwise(&expr.Meta{Key: expr.MetaKeyMARK, Register: reg1}, mask, xor),
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: reg1})}
}

// Marked matches if all the bits are set in the packet's mark.
func Marked(bits uint32) Statement {
	mask := Key{}.Index(bits)
	return Statement{
		fmt.Sprintf("meta mark & 0x%08x == 0x%08x", bits, bits),
		masked(&expr.Meta{Key: expr.MetaKeyMARK, Register: reg1}, mask, expr.CmpOpEq, mask),
	}
}

// Translated matches connections whose destination was translated.
func Translated() Statement {
	const dstNAT = 1 << 5 // IPS_DST_NAT, linux/netfilter/nf_conntrack_common.h
	status := &expr.Ct{Key: expr.CtKeySTATUS, Register: reg1}
	return Statement{"ct status dnat", masked(status, Key{}.Index(dstNAT), expr.CmpOpNeq, Key{}.Index(0))}
}

// masked returns expressions that load a value, and compare those of its bits that are in a mask.
func masked(load expr.Any, mask []byte, op expr.CmpOp, with []byte) []expr.Any {
	zero := make([]byte, len(mask))
	return []expr.Any{
		load,
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: uint32(len(mask)), Mask: mask, Xor: zero},
		&expr.Cmp{Op: op, Register: reg1, Data: with},
	}
}

// bitwise returns expressions that load 32 bits into register 1, keep those of a mask, and flip others.
func bitwise(load expr.Any, mask, xor uint32) []expr.Any {
	return []expr.Any{load, &expr.Bitwise{
		SourceRegister: reg1, DestRegister: reg1, Len: 4, Mask: Key{}.Index(mask), Xor: Key{}.Index(xor),
	}}
}

// Masquerade gives the connection the address of the interface it leaves by and a random port.
func Masquerade() Statement {
	return Statement{"masquerade fully-random", []expr.Any{&expr.Masq{FullyRandom: true}}}
}

// MasqueradeInPlace is Masquerade, but the connection keeps its port unless another one has it.
func MasqueradeInPlace() Statement { return Statement{"masquerade", []expr.Any{&expr.Masq{}}} }

// FromHere matches packets whose source is an address of this host.
func FromHere() Statement { return local("fib saddr type local", &expr.Fib{FlagSADDR: true}) }

// ToHere matches packets whose destination is an address of this host.
func ToHere() Statement { return local("fib daddr type local", &expr.Fib{FlagDADDR: true}) }

func local(text string, fib *expr.Fib) Statement {
	fib.Register, fib.ResultADDRTYPE = reg1, true
	return Statement{text, []expr.Any{fib, &expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: Key{}.Index(unix.RTN_LOCAL)}}}
}

// ToLoopback matches packets whose destination is a loopback address.
func ToLoopback(f Family) Statement {
	if f == IP6 {
		return equals("ip6 daddr ::1", Destination(f), netip.IPv6Loopback().AsSlice())
	}
	return in127("ip daddr 127.0.0.0/8", IP4.sourceAt()+Addr.width(IP4))
}

// FromLoopback matches packets from 127.0.0.0/8.
func FromLoopback() Statement { return in127("ip saddr 127.0.0.0/8", IP4.sourceAt()) }

// in127 compares the first byte of an IPv4 address with 127.
func in127(text string, offset int) Statement {
	return equals(text, payload("", expr.PayloadBaseNetworkHeader, offset, 1), []byte{127})
}

// FromInterface matches packets that arrived on the interface.
func FromInterface(name string) Statement {
	whole := make([]byte, unix.IFNAMSIZ) // as the kernel stores it
	copy(whole[:unix.IFNAMSIZ-1], name)
	return iifname(name, whole)
}

// FromPrefix matches packets that arrived on an interface whose name has the prefix.
func FromPrefix(prefix string) Statement { return iifname(prefix+"*", []byte(prefix)) }

// iifname compares the beginning of the name of the interface on which a packet arrived.
func iifname(pattern string, data []byte) Statement {
	return equals(fmt.Sprintf("iifname %q", pattern), meta("", expr.MetaKeyIIFNAME), data)
}

func equals(text string, f Field, data []byte) Statement { return compare(text, f, expr.CmpOpEq, data) }

func compare(text string, f Field, op expr.CmpOp, data []byte) Statement {
	return Statement{text, []expr.Any{f.load(reg1), &expr.Cmp{Op: op, Register: reg1, Data: data}}}
}

// Remember adds an element with a timeout to a dynamic map. If the key exists it keeps its
// data, and its timeout restarts. If the map is full the rule does not match.
func Remember(to string, timeout time.Duration, data Field, key ...Field) Statement {
	return dynset("update @%s { %s timeout "+seconds(timeout)+" : %s }", data, key,
		expr.Dynset{SetName: to, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: timeout})
}

// Forget deletes an element from a dynamic map, if it exists. The kernel requires data as well, but ignores it.
func Forget(from string, key ...Field) Statement {
	const opDelete = 2 // NFT_DYNSET_OP_DELETE, linux/netfilter/nf_tables.h
	return dynset("delete @%s { %s : %s }", Priority(), key, expr.Dynset{SetName: from, Operation: opDelete})
}

func dynset(format string, data Field, key []Field, change expr.Dynset) Statement {
	text, exprs, width := join(key)
	change.SrcRegKey, change.SrcRegData = reg1, after(width)
	change.SetID = byName
	return Statement{fmt.Sprintf(format, change.SetName, text, data.text), append(exprs, data.load(after(width)), &change)}
}

// after returns the first 16-byte register behind so many bytes from register 1 on.
func after(width int) uint32 { return at((width + 15) / 16 * 16) }

// seconds prints a duration as nft does, "1d2h3m4s".
func seconds(d time.Duration) string {
	var b strings.Builder
	for _, unit := range []struct {
		name string
		size time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}} {
		if n := d / unit.size; n > 0 {
			fmt.Fprintf(&b, "%d%s", n, unit.name)
			d -= n * unit.size
		}
	}
	return b.String()
}
