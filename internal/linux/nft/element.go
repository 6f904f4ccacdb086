package nft

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/internal/linux/nl"
)

// Key builds the raw bytes of a key or of data, field by field.
type Key []byte

// Addr appends an address.
func (k Key) Addr(a netip.Addr) Key { return append(k, a.AsSlice()...) }

// Proto appends a protocol number.
func (k Key) Proto(p uint8) Key { return append(k, p, 0, 0, 0) }

// Ether appends a hardware address, which is not padded: it can only be the whole key.
func (k Key) Ether(mac [6]byte) Key { return append(k, mac[:]...) }

// Port appends a port.
func (k Key) Port(p uint16) Key { return append(k, byte(p>>8), byte(p), 0, 0) }

// Index appends 32 bits in host order.
func (k Key) Index(i uint32) Key { return binary.NativeEndian.AppendUint32(k, i) }

// ClassID appends a class. Any byte order would do, as the value only passes from
// one map to another; nft expects this one.
func (k Key) ClassID(c uint32) Key { return binary.BigEndian.AppendUint32(k, c) }

// Range returns the element of an interval set that covers the prefix, behind the fields of a key. Its
// end is the last address if there are such fields, and the one after that otherwise (nft_set_rbtree).
func Range(key string, p netip.Prefix) Element {
	e, last := Element{Key: string(Key(key).Addr(p.Masked().Addr()))}, lastIn(p)
	if key == "" {
		last = last.Next()
	}
	if last.IsValid() {
		e.End = string(Key(key).Addr(last))
	}
	return e
}

func lastIn(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// AddrLen returns how many bytes an address has.
func (f Family) AddrLen() int { return Addr.width(f) }

// width returns how many bytes a field takes in a key.
func (t Type) width(f Family) int {
	switch {
	case t == Addr6, t == Addr && f == IP6:
		return 16
	case t == Ether:
		return 6
	}
	return 4
}

// text prints an element as nft does.
func (e Element) text(s Set, f Family) string {
	var b strings.Builder
	b.WriteString(fields(s.Key, f, e.Key, e.last(s)))
	if e.Comment != "" {
		b.WriteString(" comment " + strconv.Quote(e.Comment))
	}
	switch {
	case s.Verdicts():
		b.WriteString(" : goto " + e.Goto)
	case s.Data != nil:
		b.WriteString(" : " + fields(s.Data, f, e.Data, ""))
	}
	return b.String()
}

// last returns the last key of a range, in whatever way its end is kept; nothing for a single key.
func (e Element) last(s Set) string {
	if !s.Interval || len(s.Key) > 1 {
		return e.End
	}
	if e.End == "" {
		return strings.Repeat("\xff", len(e.Key))
	}
	end, _ := netip.AddrFromSlice([]byte(e.End))
	return string(end.Prev().AsSlice())
}

// span prints a range of addresses, as a prefix if it is one.
func span(t Type, first, end string) string {
	a, _ := netip.AddrFromSlice([]byte(first))
	b, _ := netip.AddrFromSlice([]byte(end))
	for bits := range a.BitLen() {
		if p := netip.PrefixFrom(a, bits); p.Masked().Addr() == a && lastIn(p) == b {
			return p.String()
		}
	}
	return field(t, first) + "-" + field(t, end)
}

// fields prints raw bytes by the types of their fields; a field whose end differs is a range.
func fields(types []Type, f Family, raw, end string) string {
	if raw == "" {
		return "*"
	}
	parts := make([]string, 0, len(types))
	for _, t := range types {
		w := t.width(f)
		if len(raw) < w {
			return fmt.Sprintf("malformed %x", raw)
		}
		part := field(t, raw[:w])
		if len(end) >= w {
			if end[:w] != raw[:w] {
				part = span(t, raw[:w], end[:w])
			}
			end = end[w:]
		}
		parts = append(parts, part)
		raw = raw[w:]
	}
	return strings.Join(parts, " . ")
}

func field(t Type, raw string) string {
	b := []byte(raw)
	switch t {
	case Addr, Addr4, Addr6:
		a, _ := netip.AddrFromSlice(b)
		return a.String()
	case Proto:
		return nl.ProtocolName(b[0])
	case Port:
		return strconv.Itoa(int(binary.BigEndian.Uint16(b)))
	case Index:
		return class(binary.NativeEndian.Uint32(b))
	case ClassID:
		return class(binary.BigEndian.Uint32(b))
	case Ether:
		return net.HardwareAddr(b[:6]).String()
	case Verdict:
		return ""
	}
	return fmt.Sprintf("%x", b)
}

// class prints a class as tc(8) does.
func class(v uint32) string {
	if v == 0 {
		return "none"
	}
	return fmt.Sprintf("%x:%x", v>>16, v&0xffff)
}
