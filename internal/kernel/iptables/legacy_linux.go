package iptables

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel hands a legacy table over as a list of entries
// (linux/netfilter_ipv4/ip_tables.h, x_tables.h): for each hook its rules and an
// entry with the policy, then for each other chain an entry with its name, its
// rules and an entry that returns, and one last entry. A rule leads to a chain by
// the offset of that chain's first rule. The numbers are those of 64-bit
// machines, in the machine's byte order. Reading takes CAP_NET_ADMIN, but no
// iptables program.
const (
	getInfo    = 64 // IPT_SO_GET_INFO, IP6T_SO_GET_INFO
	getEntries = 65 // IPT_SO_GET_ENTRIES, IP6T_SO_GET_ENTRIES

	nameLen     = 32 // bytes of the name of a table
	infoLen     = 84 // of struct ipt_getinfo
	listingHead = 40 // of struct ipt_get_entries
	partHead    = 32 // of a match or target: size, name, revision
	hookCount   = 5
)

// layout has the offsets of the fields of an entry. They depend on the family, as
// addresses come before them.
type layout struct {
	target int // offset of the target in two bytes, and the length of the entry in two
	head   int // length of the fields before the matches, counters included
}

// protocol is what differs between the families.
type protocol struct {
	layout
	names         string // the file that lists the existing tables
	domain, level int
}

func protocolOf(f Family) protocol {
	if f == IPv6 {
		return protocol{layout{140, 168}, "/proc/thread-self/net/ip6_tables_names", unix.AF_INET6, unix.SOL_IPV6}
	}
	return protocol{layout{88, 112}, "/proc/thread-self/net/ip_tables_names", unix.AF_INET, unix.SOL_IP}
}

// tables lists the existing tables. A request for another one would create it, and with
// it hooks that every packet passes.
func (p protocol) tables() ([]string, error) {
	b, err := os.ReadFile(p.names)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return strings.Fields(string(b)), err
}

// get calls getsockopt: the request is in b, and the answer replaces it.
func (p protocol) get(option int, b []byte) error {
	fd, err := unix.Socket(p.domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }() // nothing is lost with it
	size := uint32(len(b))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(p.level), uintptr(option),
		uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// Stamp is what the kernel returns about a legacy table without its rules: its size,
// number of entries, and the offsets of its built-in chains. It differs after rules were
// added or removed, but not after a rule was replaced with one of the same size. The zero
// value is that of a table that does not exist.
type Stamp [infoLen - nameLen]byte

func (s Stamp) word(i int) int { return int(binary.NativeEndian.Uint32(s[4*i:])) }

// hasHook reports whether a hook leads into the table; entry is the offset of its
// first entry.
func (s Stamp) hasHook(hook int) bool { return s.word(0)&(1<<hook) != 0 }
func (s Stamp) entry(hook int) int    { return s.word(1 + hook) }

// entries and size are those of the whole table.
func (s Stamp) entries() int { return s.word(1 + 2*hookCount) }
func (s Stamp) size() int    { return s.word(2 + 2*hookCount) }

// rules counts the entries without one policy for each hook and the last entry.
func (s Stamp) rules() int {
	n := s.entries() - 1
	for hook := range hookCount {
		if s.hasHook(hook) {
			n--
		}
	}
	return n
}

func (p protocol) stamp(table string) (Stamp, error) {
	var info [infoLen]byte
	copy(info[:nameLen-1], table)
	if err := p.get(getInfo, info[:]); err != nil {
		return Stamp{}, fmt.Errorf("read size: %w", err)
	}
	return Stamp(info[nameLen:]), nil
}

// legacyTable is a table as the kernel hands it over, divided into chains.
type legacyTable struct {
	layout
	stamp  Stamp
	data   []byte
	chains []legacyChain
}

type legacyChain struct {
	name    string
	builtin bool
	rules   []legacyRule
}

// legacyRule is the position of a rule in the data, and its target: a name, or a verdict,
// which is the offset of a chain if it is not negative.
type legacyRule struct {
	at, part, end int
	target        string
	verdict       int
	leads         int // the index of the chain it leads to, or none
}

const none = -1

// read reads a table. The kernel refuses with EAGAIN if the size changed since
// the stamp was read; the pauses grow, so that a program with many writes can finish.
func (p protocol) read(ctx context.Context, table string) (*legacyTable, error) {
	const attempts, firstPause, lastPause = 20, time.Millisecond, 250 * time.Millisecond
	for i := range attempts {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		stamp, err := p.stamp(table)
		if err != nil {
			return nil, err
		}
		listing := make([]byte, listingHead+stamp.size())
		copy(listing[:nameLen-1], table)
		binary.NativeEndian.PutUint32(listing[nameLen:], uint32(stamp.size()))
		err = p.get(getEntries, listing)
		if errors.Is(err, unix.EAGAIN) {
			time.Sleep(min(firstPause<<i, lastPause))
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read entries: %w", err)
		}
		return p.parse(stamp, listing[listingHead:])
	}
	return nil, fmt.Errorf("the table changed during each of %d attempts to read it", attempts)
}

// parse divides the data into chains.
func (l layout) parse(stamp Stamp, data []byte) (*legacyTable, error) {
	t := &legacyTable{layout: l, stamp: stamp, data: data}
	starts := map[int]int{} // chains by the offset of their first rule
	var chain *legacyChain
	n, at := 0, 0
	for ; at < len(data); n++ {
		r, err := l.decode(data, at)
		if err != nil {
			return nil, fmt.Errorf("entry at byte %d of %d: %w", at, len(data), err)
		}
		name := stamp.chainAt(at)
		if r.target == "ERROR" {
			name = text(data[r.part+partHead : r.end])
		}
		switch {
		case r.target == "ERROR" && r.end == len(data): // the last entry
		case name != "":
			t.chains = append(t.chains, legacyChain{name: name, builtin: r.target != "ERROR"})
			chain = &t.chains[len(t.chains)-1]
			if !chain.builtin {
				starts[r.end] = len(t.chains) - 1
				break
			}
			starts[r.at] = len(t.chains) - 1
			fallthrough
		case chain != nil:
			chain.rules = append(chain.rules, r)
		default:
			return nil, fmt.Errorf("entry at byte %d belongs to no chain", at)
		}
		at = r.end
	}
	if n != stamp.entries() {
		return nil, fmt.Errorf("found %d entries, the kernel announced %d", n, stamp.entries())
	}
	return t, t.resolve(starts)
}

// chainAt returns the name of the built-in chain whose first entry is at an offset;
// empty: none.
func (s Stamp) chainAt(offset int) string {
	for hook := range hookCount {
		if s.entry(hook) == offset && s.hasHook(hook) {
			return [hookCount]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}[hook]
		}
	}
	return ""
}

func (l layout) decode(data []byte, at int) (legacyRule, error) {
	rest := data[at:]
	if len(rest) < l.head+partHead {
		return legacyRule{}, errors.New("cut off")
	}
	part := int(binary.NativeEndian.Uint16(rest[l.target:]))
	next := int(binary.NativeEndian.Uint16(rest[l.target+2:]))
	if part < l.head || next < part+partHead+4 || next > len(rest) { // each target has at least four bytes
		return legacyRule{}, fmt.Errorf("target at %d of %d bytes", part, next)
	}
	r := legacyRule{at: at, part: at + part, end: at + next, leads: none, target: text(rest[part+2 : part+partHead-1])}
	if r.target == "" {
		r.verdict = int(int32(binary.NativeEndian.Uint32(rest[part+partHead:])))
	}
	return r, nil
}

// resolve finds the chains that rules lead to, and removes the last entry of
// each chain: the policy, or a return.
func (t *legacyTable) resolve(starts map[int]int) error {
	for i := range t.chains {
		c := &t.chains[i]
		if len(c.rules) == 0 {
			return fmt.Errorf("chain %q has no end", c.name)
		}
		c.rules = c.rules[:len(c.rules)-1]
		for j := range c.rules {
			r := &c.rules[j]
			if r.target != "" || r.verdict < 0 || r.verdict == r.end { // the last: on to the next rule
				continue
			}
			to, ok := starts[r.verdict]
			if !ok {
				return fmt.Errorf("entry at byte %d leads to byte %d, where no chain starts", r.at, r.verdict)
			}
			r.leads = to
		}
	}
	return nil
}

// outline returns the table without the matches of its rules.
func (t *legacyTable) outline(id TableID) Outline {
	o := Outline{TableID: id, Chains: make([]ChainOutline, 0, len(t.chains))}
	for _, c := range t.chains {
		chain := ChainOutline{Name: c.name, Builtin: c.builtin}
		for _, r := range c.rules {
			rule := RuleOutline{Target: cmp.Or(r.target, verdictName(r))}
			if r.leads != none {
				rule = RuleOutline{Target: t.chains[r.leads].name, Jump: true}
			}
			chain.Rules = append(chain.Rules, rule)
		}
		o.Chains = append(o.Chains, chain)
	}
	return o
}

// verdictName returns the verdict of a rule without a target; empty: none.
func verdictName(r legacyRule) string {
	switch {
	case r.verdict >= 0:
		return ""
	case r.verdict == -1:
		return "DROP"
	case r.verdict == -2:
		return "ACCEPT"
	case r.verdict == -4:
		return "QUEUE"
	case r.verdict == -5:
		return "RETURN"
	}
	return fmt.Sprintf("verdict %d", r.verdict)
}

// text returns a string that ends at the first zero, or with its field.
func text(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

// ends reports whether a rule matches every packet and no packet gets past it.
func (t *legacyTable) ends(r legacyRule) bool {
	conditions := t.data[r.at : r.at+t.target] // addresses, interfaces, protocol
	return r.part == r.at+t.head && (r.target != "" || r.verdict < 0) &&
		!slices.ContainsFunc(conditions, func(c byte) bool { return c != 0 })
}
