package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// foreign has rules of every kind that jumps to a chain, and some that do not.
const foreign = `add table ip t
add chain ip t in { type filter hook input priority 0 ; }
add chain ip t out { type filter hook output priority 0 ; }
add chain ip t A
add chain ip t B
add rule ip t in tcp dport 1 counter jump A comment "by nft"
add rule ip t in goto B
add rule ip t in tcp dport vmap { 3 : jump B }
add rule ip t in ip saddr 192.0.2.1 reject
add rule ip t in counter drop
add rule ip t A jump B
add table ip other
add table inet t`

func foreignTable(t *testing.T) (conn *Conn, netns int) {
	conn, netns = realKernel(t)
	for command := range strings.Lines(foreign) {
		runNft(t, netns, strings.TrimSpace(command))
	}
	return conn, netns
}

func outline(t *testing.T, conn *Conn) []Outline {
	t.Helper()
	all, err := conn.Outline(t.Context(), tables, AllRules)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestOutline(t *testing.T) {
	conn, _ := foreignTable(t)
	got := outline(t, conn)
	for _, c := range got[0].Chains {
		for i := range c.Rules {
			c.Rules[i].Handle = 0
		}
	}
	want := []Outline{{Table: Table{IP4, "t"}, Handle: got[0].Handle, Chains: []ChainOutline{
		{Name: "in", Builtin: true, Hook: Input, Rules: []RuleOutline{
			{Target: "A", Jump: true},
			{Target: "B", Jump: true, Every: true},
			{},
			{Target: "REJECT"},
			{Target: "DROP", Every: true},
		}},
		{Name: "out", Builtin: true, Hook: Output},
		{Name: "A", Rules: []RuleOutline{{Target: "B", Jump: true, Every: true}}},
		{Name: "B"},
	}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("outline (-want +got):\n%s", diff)
	}
	if got[0].Chains[0].Entrance() || !got[0].Chains[1].Entrance() || got[0].Chains[2].Entrance() {
		t.Error("only the chain out should be an entrance")
	}
	few, err := conn.Outline(t.Context(), tables, func(_ Table, chain string) bool { return chain == "A" })
	if err != nil || few[0].Chains[0].Rules != nil || len(few[0].Chains[2].Rules) != 1 {
		t.Errorf("with rules of A only: %v, %v", few, err)
	}
	for _, tt := range []struct {
		table Table
		chain string
		want  bool
	}{
		{Table{IP4, "t"}, "", true},
		{Table{IP4, "t"}, "A", true},
		{Table{IP4, "t"}, "C", false},
		{Table{IP6, "t"}, "", false},
		{Table{IP6, "t"}, "A", false},
	} {
		if has, err := conn.Has(t.Context(), tt.table, tt.chain); err != nil || has != tt.want {
			t.Errorf("%s %s exists: %t, %v", tt.table, tt.chain, has, err)
		}
	}
}

// Prune deletes the chosen chains and rules, and nothing if one of them is still in use.
func TestPrune(t *testing.T) {
	conn, netns := foreignTable(t)
	before := runNft(t, netns, "-a", "list ruleset")
	table := outline(t, conn)[0]
	rule := table.Chains[0].Rules[0]
	prune := func(cut Cut) error {
		cut.Table, cut.Handle = table.Table, table.Handle
		return conn.Prune(t.Context(), []Cut{cut})
	}
	if err := prune(Cut{Chains: []string{"A"}}); !errors.Is(err, unix.EBUSY) {
		t.Errorf("a chain to which a rule jumps: %v", err)
	}
	if err := prune(Cut{Rules: []ChainRule{{"in", rule}}, Chains: []string{"B", "A"}}); !errors.Is(err, unix.EBUSY) {
		t.Errorf("a chain to which a map jumps: %v", err)
	}
	if after := runNft(t, netns, "-a", "list ruleset"); after != before {
		t.Errorf("a refused deletion changed (-before +after):\n%s", cmp.Diff(before, after))
	}
	if err := prune(Cut{Rules: []ChainRule{{"in", rule}}, Chains: []string{"A"}}); err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	for line := range strings.Lines(before) {
		if !strings.Contains(line, "jump A comment") {
			want.WriteString(line)
		}
	}
	chain := want.String()[strings.Index(want.String(), "\n\tchain A"):strings.Index(want.String(), "\n\tchain B")]
	if diff := cmp.Diff(strings.Replace(want.String(), chain, "", 1), runNft(t, netns, "-a", "list ruleset")); diff != "" {
		t.Errorf("after the deletion (-want +got):\n%s", diff)
	}
}

// If another program recreates the table after the listing, Prune deletes nothing: the handles of the new table
// identify other rules.
func TestPruneOfARecreatedTable(t *testing.T) {
	conn, netns := foreignTable(t)
	table := outline(t, conn)[0]
	cut := Cut{Table: table.Table, Handle: table.Handle, Rules: []ChainRule{{"in", table.Chains[0].Rules[0]}}}
	runNft(t, netns, "delete table ip t")
	for command := range strings.Lines(foreign) {
		runNft(t, netns, strings.TrimSpace(command))
	}
	before := runNft(t, netns, "-a", "list ruleset")
	if err := conn.Prune(t.Context(), []Cut{cut}); !errors.Is(err, errRecreated) {
		t.Errorf("got %v, want %v", err, errRecreated)
	}
	if after := runNft(t, netns, "-a", "list ruleset"); after != before {
		t.Errorf("rules (-before +after):\n%s", cmp.Diff(before, after))
	}
}

// Another program may write between the listing and the deletion.
func TestPruneAfterOtherWrites(t *testing.T) {
	conn, netns := foreignTable(t)
	table := outline(t, conn)[0]
	cut := Cut{Table: table.Table, Handle: table.Handle}
	for _, r := range table.Chains[0].Rules {
		cut.Rules = append(cut.Rules, ChainRule{"in", r})
	}
	runNft(t, netns, "insert rule ip t in counter")
	if err := conn.Prune(t.Context(), []Cut{cut}); err != nil {
		t.Error(err)
	}
	if rules := outline(t, conn)[0].Chains[0].Rules; len(rules) != 1 || rules[0].Target != "" {
		t.Errorf("the remaining rules are %v, want only that of the other program", rules)
	}
}

func TestPruneEndsWithItsContext(t *testing.T) {
	conn, _ := foreignTable(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := conn.Prune(ctx, []Cut{{Table: Table{IP4, "t"}, Chains: []string{"A"}}})
	if !errors.Is(err, context.Canceled) || len(outline(t, conn)[0].Chains) != 4 {
		t.Errorf("got %v", err)
	}
}

// A deletion has first the jumps to chains, then the rules of these, then the chains.
func TestDeletionsAreInOrder(t *testing.T) {
	rule := ChainRule{"OUTPUT", RuleOutline{Handle: 2}}
	cut := Cut{Table: Table{IP6, "nat"}, Rules: []ChainRule{rule}, Chains: []string{"A", "B"}}
	x := &exchange{}
	x.deletions(1, []Cut{cut})
	x.end()
	var kinds []string
	for b := x.request; len(b) > 0; b = b[(binary.NativeEndian.Uint32(b)+3)&^3:] {
		kind := kindOf(netlink.Message{Header: netlink.Header{Type: netlink.HeaderType(binary.NativeEndian.Uint16(b[4:]))}})
		kinds = append(kinds, kind)
	}
	if got, want := strings.Join(kinds[1:], " "), "rule rule rule chain chain"; got != want {
		t.Errorf("deletions are %s, want %s", got, want)
	}
}

// If the kernel does not grant a buffer for a deletion, as in a user namespace, the error says so.
func TestPruneOfMoreThanTheBuffer(t *testing.T) {
	conn, _ := foreignTable(t)
	table := outline(t, conn)[0]
	cut := Cut{Table: table.Table, Handle: table.Handle, Chains: slices.Repeat([]string{"A"}, 1<<17)}
	err := conn.Prune(t.Context(), []Cut{cut})
	if !errors.Is(err, unix.EMSGSIZE) {
		t.Log("the kernel grants the buffer:", err) // and the chain does not exist twice
		return
	}
	if !strings.Contains(err.Error(), "raise net.core.wmem_max") {
		t.Errorf("got %v, want advice", err)
	}
}

// aRule is a message with a rule of chain A, with the match "comment" and a jump to chain B.
const aRule = "\x02\x00\x00\x00" + "\x06\x00\x02\x00A\x00\x00\x00" + "\x54\x00\x04\x80" +
	"\x28\x00\x01\x80" + "\x0a\x00\x01\x00match\x00\x00\x00" + "\x18\x00\x02\x80" +
	"\x0c\x00\x01\x00comment\x00" + "\x07\x00\x03\x00hi\x00\x00" +
	"\x28\x00\x01\x80" + "\x0e\x00\x01\x00immediate\x00\x00\x00" + "\x14\x00\x02\x80" +
	"\x10\x00\x02\x80" + "\x0c\x00\x02\x80" + "\x06\x00\x02\x00B\x00\x00\x00"

func aMessage(kind int, data []byte) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind)}, Data: data,
	}
}

func TestDecodesARule(t *testing.T) {
	o, err := decodeObject(aMessage(unix.NFT_MSG_NEWRULE, []byte(aRule)))
	want := object{table: Table{Family: IP4}, chain: "A", rule: RuleOutline{Target: "B", Jump: true, Every: true}}
	if o != want || err != nil {
		t.Errorf("got %+v, %v, want %+v", o, err, want)
	}
}

// FuzzDecode verifies that decodeObject never panics.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(aRule))
	f.Fuzz(func(_ *testing.T, b []byte) {
		for _, kind := range []int{unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELRULE} {
			_, _ = decodeObject(aMessage(kind, b))
		}
	})
}

// Notifications are decoded, including that of a deleted rule.
func TestChangesAreDecoded(t *testing.T) {
	_, netns := realKernel(t)
	changes, done, listening := make(chan string, 100), make(chan error, 1), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	w := &Watch{NetNS: netns, Own: &Own{}, Report: func(e Edit) { t.Errorf("reported %v", e) }}
	w.What = func(c Event) string {
		changes <- fmt.Sprintf("%s: %s %s %s gone=%t", c.Table, c.Kind, c.Chain, c.Rule.Target, c.Gone)
		return ""
	}
	go func() { done <- w.Run(ctx, func() { close(listening) }) }()
	<-listening
	for _, command := range []string{
		"add table ip6 t", "add chain ip6 t A", "add chain ip6 t B", "add rule ip6 t A jump B", "flush chain ip6 t A",
		"add set ip6 t s { type mark ; }", "delete table ip6 t",
	} {
		runNft(t, netns, command)
	}
	for _, want := range []string{
		"ip6 t: table   gone=false", "ip6 t: chain A  gone=false", "ip6 t: chain B  gone=false",
		"ip6 t: rule A B gone=false", "ip6 t: rule A B gone=true", "ip6 t: set   gone=false",
	} {
		if got := <-changes; got != want {
			t.Errorf("decoded %q, want %q", got, want)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
