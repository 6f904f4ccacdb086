package nft

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// The sets and maps of the rules in tests.
var (
	frontends = Set{Name: "fronts", Key: []Type{Addr, Proto, Port}, Data: []Type{ClassID}}
	backends  = Set{Name: "backends", Key: []Type{Addr, Proto, Port, Index}, Data: []Type{Addr, Port}}
	ways      = Set{Name: "ways", Key: []Type{ClassID}, Data: []Type{Verdict}}
	direct    = Set{Name: "direct", Key: []Type{Addr, Proto, Port}, Data: []Type{Verdict}}
	some      = Set{Name: "some", Key: []Type{Addr}}
	pairs     = Set{Name: "pairs", Key: []Type{Addr, Addr}}
	nets      = Set{Name: "nets", Key: []Type{Addr}, Interval: true}
	allowed   = Set{Name: "allowed", Key: []Type{Addr, Proto, Port, Addr}, Interval: true}
	clients   = Set{Name: "clients", Key: []Type{ClassID, Addr}, Data: []Type{Index}, Dynamic: true, Size: 1000}
	tallies   = Set{
		Name: "tallies", Key: []Type{Addr, Proto, Port, Index}, Dynamic: true, Size: 4, Timeout: time.Hour,
	}
)

func everySet() []Set {
	return []Set{frontends, backends, ways, direct, some, pairs, nets, allowed, clients, tallies}
}

// everyRule returns a rule for each statement, and for each hook the rules that only it allows.
func everyRule(f Family) []Chain {
	key := []Field{Destination(f), L4Proto(), DestinationPort()}
	row := append(slices.Clip(key), Priority())
	var any []Rule
	for _, s := range []Statement{
		In("some", Source(f)), Not(In("some", Destination(f))), In("nets", Source(f)), In("pairs", Source(f), Destination(f)),
		Not(In("allowed", append(key, Source(f))...)), Dispatch("direct", key...), Dispatch("ways", Priority()),
		SetPriority("fronts", key...), ClearPriority(), Draw(1, 3), Draw(65537, 65535), Goto("other"), Jump("other"), Drop(),
		Reject(f),
		MarkSet(0x4000), MarkFlip(0x4000), Marked(0x4000), MarkSet(0x80000001), Marked(1),
		Translated(), FromHere(), ToHere(), Not(ToHere()), Not(ToLoopback(f)),
		FromInterface("cbr0"), Not(FromInterface("cbr0")), FromInterface("fifteen-letters"),
		FromPrefix("veth"), Not(FromPrefix("veth")),
		Remember("clients", 3*time.Hour, Random(1, 3), Priority(), Source(f)),
		Remember("clients", time.Second, Random(65537, 1), Priority(), Source(f)),
		Remember("clients", 26*time.Hour+61*time.Second, Random(1, 65535), Priority(), Source(f)),
		Forget("clients", Priority(), Source(f)),
		SetPriority("clients", Priority(), Source(f)), UDP(),
		DrawByHash(0x51, 1, 3, Source(f), Destination(f), SourcePort(), DestinationPort()), DrawByHash(1, 7, 1021, Source(f)),
		LastBit(f, 0), LastBit(f, 1),
	} {
		any = append(any, NewRule(s))
	}
	any = append(any, NewRule(Translated(), ClearPriority()))
	if f == IP4 {
		any = append(any, NewRule(ToLoopback(f)), NewRule(FromLoopback()))
	}
	any = append(any,
		NewRule(FromHere(), MarkSet(0x4000), Goto("other")),
		NewRule(In("nets", Destination(f)), Not(FromPrefix("veth")), MarkSet(1)))
	return []Chain{
		{Name: "other"},
		{Name: "any", Rules: any},
		{Name: "prerouting", Hook: &Hook{Type: "nat", Point: Prerouting, Priority: -100}, Rules: []Rule{
			NewRule(LastBit(f, 1), Count("tallies", row...), TranslateFrom(f, "backends", row...)),
			NewRule(TranslateFrom(f, "backends", append(key, Random(1, 3))...)),
			NewRule(TranslateFrom(f, "backends", append(key, Priority())...)),
		}},
		{Name: "output", Hook: &Hook{Type: "nat", Point: Output, Priority: -100}},
		{Name: "input", Hook: &Hook{Type: "filter", Point: Input, Priority: 0}},
		{Name: "postrouting", Hook: &Hook{Type: "nat", Point: Postrouting, Priority: 100}, Rules: []Rule{
			NewRule(Masquerade()), NewRule(MasqueradeInPlace()),
			NewRule(Translated(), In("pairs", Source(f), Destination(f)), Masquerade()),
		}},
	}
}

func allOf(f Family, table Table) *Tx {
	tx := &Tx{}
	tx.AddTable(table)
	for _, s := range everySet() {
		tx.AddSet(table, s)
	}
	for _, c := range everyRule(f) {
		tx.SetChain(table, c)
	}
	return tx
}

// A rule prints itself like nft prints it, and is read back as it was sent.
func TestRulesAreReadAndPrintedLikeNft(t *testing.T) {
	for _, table := range tables {
		t.Run(table.String(), func(t *testing.T) {
			conn, netns := realKernel(t)
			f := table.Family
			commit(t, conn, allOf(f, table))
			state := read(t, conn, table)
			for _, c := range everyRule(f) {
				if !state.Chains[c.Name].Is(c) {
					t.Errorf("chain %s differs from the sent one", c.Name)
				}
				listed := ruleLines(runNft(t, netns, "list", "chain", f.String(), table.Name, c.Name))
				if len(listed) != len(c.Rules) {
					t.Fatalf("chain %s: %d rules listed, want %d:\n%s", c.Name, len(listed), len(c.Rules), strings.Join(listed, "\n"))
				}
				for i, r := range c.Rules {
					if listed[i] != r.String() {
						t.Errorf("\nnft prints %s\nString is  %s", listed[i], r)
					}
				}
			}
		})
	}
}

// A rule of another program that matches a direction of connections can be read, which the library cannot do.
func TestDirectionsAreRead(t *testing.T) {
	conn, netns := realKernel(t)
	tx, table := &Tx{}, tables[0]
	tx.AddTable(table)
	tx.SetChain(table, Chain{Name: "any"})
	commit(t, conn, tx)
	runNft(t, netns, "add rule "+table.String()+" any ct original "+table.Family.String()+" daddr 192.0.2.1 accept")
	if state := read(t, conn, table); state.Chains["any"].Is(Chain{Name: "any"}) {
		t.Errorf("read %v, want another chain", state)
	}
}

// ruleLines returns the rules in the output of nft for a chain.
func ruleLines(listing string) []string {
	var rules []string
	for line := range strings.Lines(listing) {
		line = strings.TrimSpace(line)
		if line == "" || line == "}" || strings.HasSuffix(line, "{") || strings.HasPrefix(line, "type ") {
			continue
		}
		rules = append(rules, line)
	}
	return rules
}
