package xtables

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
)

// The legacy kernel interface hands a table over as one blob of entries
// (linux/netfilter_ipv4/ip_tables.h, x_tables.h): for each hook its rules and
// an entry with the policy, then for each other chain an entry with its name,
// its rules and an entry that returns, and one last entry. A rule leads to a
// chain by the offset of that chain's first rule. The numbers are those of
// 64-bit machines, in the machine's byte order.
const (
	nameLen     = 32 // of a table
	infoLen     = 84
	listingHead = 40
	replaceHead = 96
	counterLen  = 16
	partHead    = 32 // of a match or a target: size, name, revision
	partName    = 29
	errorName   = 30
	wordLen     = 8
	hookCount   = 5
	continues   = -1 // an entry that leads to no chain

	verdictReturn = -5
)

// layout is where the fields of an entry are, which depends on the family: in
// front of them are the addresses.
type layout struct {
	target   int // two bytes, and two with the entry's length after it
	comefrom int // four bytes of the kernel's own
	counters int
	head     int // the matches follow
}

func layoutOf(f Family) layout {
	if f == IPv6 {
		return layout{target: 140, comefrom: 144, counters: 152, head: 168}
	}
	return layout{target: 88, comefrom: 92, counters: 96, head: 112}
}

// image is a table as the kernel hands it over.
type image struct {
	hooks     uint32 // bits
	entry     [hookCount]uint32
	underflow [hookCount]uint32 // of the entry with the policy
	number    uint32            // of entries
	data      []byte
}

// entry is one entry of an image.
type entry struct {
	at, end int
	part    int    // where the target is
	name    string // of the target; "" decides or leads on
	verdict int    // of a target without a name
	leads   int    // to which segment, or continues
}

// segment is a chain: the entries it has in the image.
type segment struct {
	name  string
	hook  int // continues: not built in
	first int // the entry with the name, if it has one
	rules int // the first rule, or the tail
	tail  int // the entry with the policy, or the return
}

// blob is a parsed image.
type blob struct {
	layout
	image
	entries  []entry
	segments []segment
}

// parse understands an image, or refuses it: nothing half understood is ever
// written back.
func parse(f Family, img image) (*blob, error) {
	b := &blob{layout: layoutOf(f), image: img}
	if err := b.walk(); err != nil {
		return nil, err
	}
	if err := b.divide(); err != nil {
		return nil, err
	}
	return b, b.resolve()
}

// walk finds the entries.
func (b *blob) walk() error {
	if int64(b.number) > int64(len(b.data))/int64(b.head+partHead) {
		return fmt.Errorf("%d entries do not fit into %d bytes", b.number, len(b.data))
	}
	b.entries = make([]entry, 0, b.number)
	for at := 0; at < len(b.data); {
		e, err := b.decode(at)
		if err != nil {
			return fmt.Errorf("entry at byte %d of %d: %w", at, len(b.data), err)
		}
		b.entries = append(b.entries, e)
		at = e.end
	}
	if len(b.entries) != int(b.number) {
		return fmt.Errorf("found %d entries, announced were %d", len(b.entries), b.number)
	}
	return nil
}

func (b *blob) decode(at int) (entry, error) {
	rest := b.data[at:]
	if len(rest) < b.head+partHead {
		return entry{}, errors.New("cut off")
	}
	part := int(binary.NativeEndian.Uint16(rest[b.target:]))
	next := int(binary.NativeEndian.Uint16(rest[b.target+2:]))
	if part < b.head || next < part+partHead || next > len(rest) || next%wordLen != 0 {
		return entry{}, fmt.Errorf("target at %d of %d bytes", part, next)
	}
	target := rest[part:next]
	size := int(binary.NativeEndian.Uint16(target))
	if size < partHead || size > len(target) {
		return entry{}, fmt.Errorf("target of %d bytes in %d", size, len(target))
	}
	e := entry{at: at, end: at + next, part: at + part, name: text(target[2 : 2+partName]), leads: continues}
	switch {
	case e.name == "" && size < partHead+4, e.name == "ERROR" && size < partHead+errorName:
		return entry{}, fmt.Errorf("target %q of %d bytes", e.name, size)
	case e.name == "":
		e.verdict = int(int32(binary.NativeEndian.Uint32(target[partHead:])))
	}
	return e, nil
}

// divide finds the chains. They must tile the image.
func (b *blob) divide() error {
	next := 0
	for _, hook := range b.hookOrder() {
		first, ok := b.entryAt(b.entry[hook])
		tail, ok2 := b.entryAt(b.underflow[hook])
		if !ok || !ok2 || first != next || tail < first {
			return fmt.Errorf("hook %d has bytes %d to %d, which are no chain", hook, b.entry[hook], b.underflow[hook])
		}
		name := [hookCount]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}[hook]
		b.segments = append(b.segments, segment{name: name, hook: hook, first: first, rules: first, tail: tail})
		next = tail + 1
	}
	last := len(b.entries) - 1
	for next < last {
		if b.entries[next].name != "ERROR" {
			return fmt.Errorf("entry at byte %d belongs to no chain", b.entries[next].at)
		}
		s := segment{name: b.label(next), hook: continues, first: next, rules: next + 1}
		for next++; next < last && b.entries[next].name != "ERROR"; next++ {
			s.tail = next
		}
		b.segments = append(b.segments, s)
	}
	if next != last || b.entries[last].name != "ERROR" {
		return errors.New("the last entry is missing")
	}
	return b.checkTails()
}

// checkTails holds that each chain ends with what is no rule of it, and that its
// name is its own.
func (b *blob) checkTails() error {
	names := make(map[string]bool, len(b.segments))
	for _, s := range b.segments {
		if names[s.name] {
			return fmt.Errorf("chain %q is there twice", s.name)
		}
		names[s.name] = true
		if s.tail < s.rules {
			return fmt.Errorf("chain %q has no end", s.name)
		}
		e := b.entries[s.tail]
		if e.name != "" || e.verdict >= 0 || e.part != e.at+b.head {
			return fmt.Errorf("chain %q does not end with a verdict for all packets", s.name)
		}
		if s.hook == continues && e.verdict != verdictReturn {
			return fmt.Errorf("chain %q does not end with a return", s.name)
		}
	}
	return nil
}

// hookOrder returns the hooks of the table in the order of their entries.
func (b *blob) hookOrder() []int {
	var hooks []int
	for hook := range hookCount {
		if b.hooks&(1<<hook) != 0 {
			hooks = append(hooks, hook)
		}
	}
	slices.SortStableFunc(hooks, func(x, y int) int { return cmp.Compare(b.entry[x], b.entry[y]) })
	return hooks
}

func (b *blob) entryAt(offset uint32) (int, bool) {
	return slices.BinarySearchFunc(b.entries, int(offset), func(e entry, at int) int { return cmp.Compare(e.at, at) })
}

// label returns the name an ERROR entry carries.
func (b *blob) label(i int) string {
	at := b.entries[i].part + partHead
	return text(b.data[at : at+errorName])
}

// resolve finds the chains that rules lead to.
func (b *blob) resolve() error {
	starts := make(map[int]int, len(b.segments))
	for i, s := range b.segments {
		starts[b.entries[s.rules].at] = i
	}
	for i := range b.entries {
		e := &b.entries[i]
		if e.name != "" || e.verdict < 0 || e.verdict == e.end { // the last: on to the next rule
			continue
		}
		to, ok := starts[e.verdict]
		if !ok {
			return fmt.Errorf("entry at byte %d leads to byte %d, where no chain starts", e.at, e.verdict)
		}
		e.leads = to
	}
	return nil
}

// table returns what the blob says.
func (b *blob) table(id TableID) Table {
	t := Table{TableID: id, Chains: make([]Chain, 0, len(b.segments))}
	for _, s := range b.segments {
		chain := Chain{Name: s.name, Builtin: s.hook != continues}
		for _, e := range b.entries[s.rules:s.tail] {
			chain.Rules = append(chain.Rules, b.rule(e))
		}
		t.Chains = append(t.Chains, chain)
	}
	return t
}

func (b *blob) rule(e entry) Rule {
	r := Rule{Target: e.name, Comment: b.comment(e)}
	switch {
	case e.leads != continues:
		r.Target, r.Jump = b.segments[e.leads].name, true
	case e.name == "" && e.verdict < 0:
		r.Target = verdictName(e.verdict)
	}
	h := fnv.New64a()
	_, _ = h.Write(b.data[e.at : e.at+b.target]) // never fails
	_, _ = h.Write(b.data[e.at+b.head : e.part])
	if e.name == "" { // where it leads is a matter of bytes, and those move
		_, _ = h.Write([]byte(r.Target))
	} else {
		_, _ = h.Write(b.data[e.part:e.end])
	}
	r.ID = h.Sum64()
	return r
}

// comment returns the text of the first comment match.
func (b *blob) comment(e entry) string {
	for rest := b.data[e.at+b.head : e.part]; len(rest) >= partHead; {
		size := int(binary.NativeEndian.Uint16(rest))
		if size < partHead || size > len(rest) {
			return ""
		}
		if text(rest[2:2+partName]) == "comment" {
			return text(rest[partHead:size])
		}
		rest = rest[size:]
	}
	return ""
}

// verdictName names what a rule without a chain to go to does.
func verdictName(verdict int) string {
	switch verdict {
	case -1:
		return "DROP"
	case -2:
		return "ACCEPT"
	case -4:
		return "QUEUE"
	case verdictReturn:
		return "RETURN"
	}
	return fmt.Sprintf("verdict %d", verdict)
}

// text returns a string that ends with its field, or before.
func text(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}
