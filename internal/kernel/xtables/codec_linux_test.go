package xtables

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

func TestFindsTheHolderOfALock(t *testing.T) {
	const locks = `1: POSIX  ADVISORY  WRITE 10 00:1a:7 0 EOF
2: FLOCK  ADVISORY  WRITE 11 00:1a:8 0 EOF
3: FLOCK  ADVISORY  WRITE 0 00:1a:7 0 EOF
4: FLOCK  ADVISORY  WRITE 12 00:1a:7 0 EOF
4: -> FLOCK  ADVISORY  WRITE 13 00:1a:7 0 EOF
broken
`
	for file, want := range map[string]int{"00:1a:7": 12, "00:1a:8": 11, "00:1a:9": 0} {
		if got := locker(locks, file); got != want {
			t.Errorf("%s is locked by %d, want %d", file, got, want)
		}
	}
}

func TestReadsCommentsOfNft(t *testing.T) {
	for parts, want := range map[string]string{
		"":                         "",
		"\x00\x06hello\x00":        "hello",
		"\x01\x02xy\x00\x03ab\x00": "ab",
		"\x01\x02xy":               "",
		"\x00\x09short":            "",
		"\x00":                     "",
	} {
		if got := userComment([]byte(parts)); got != want {
			t.Errorf("%q has the comment %q, want %q", parts, got, want)
		}
	}
}

// aRule is a message with a rule of chain A: the match "comment", and a jump to
// chain B.
const aRule = "\x02\x00\x00\x00" + "\x06\x00\x02\x00A\x00\x00\x00" + "\x54\x00\x04\x80" +
	"\x28\x00\x01\x80" + "\x0a\x00\x01\x00match\x00\x00\x00" + "\x18\x00\x02\x80" +
	"\x0c\x00\x01\x00comment\x00" + "\x07\x00\x03\x00hi\x00\x00" +
	"\x28\x00\x01\x80" + "\x0e\x00\x01\x00immediate\x00\x00\x00" + "\x14\x00\x02\x80" +
	"\x10\x00\x02\x80" + "\x0c\x00\x02\x80" + "\x06\x00\x02\x00B\x00\x00\x00"

// FuzzDecode holds that nothing the kernel could send makes it panic.
func FuzzDecode(f *testing.F) {
	t := TableID{Variant: NFT, Family: IPv4, Name: "nat"}
	rule, err := deleteRules(t, "KUBE-SERVICES", 7)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(rule.Data)
	f.Add([]byte(aRule))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = decodeTable(b)
		_, _ = decodeChain(b)
		_, _ = decodeGeneration(b)
		o, err := decodeRule(b)
		if err == nil && o.rule.Jump && len(b) < unix.NLMSG_HDRLEN {
			t.Errorf("%q leads to %q", b, o.rule.Target)
		}
	})
}

// A transaction that is too large goes in parts: first nothing leads to what
// goes, then it is empty, then it goes.
func TestPartsOfATransactionAreInOrder(t *testing.T) {
	table := Table{TableID: TableID{Variant: NFT, Family: IPv6, Name: "nat"}, Chains: []Chain{
		{Name: "A", Rules: []Rule{{Target: "B", Jump: true, ID: 1}}},
		{Name: "OUTPUT", Builtin: true, Rules: []Rule{{Target: "A", Jump: true, ID: 2}, {ID: 3}}},
		{Name: "B"},
	}}
	r := Removal{Chains: []string{"A", "B"}, Rules: []ChainRule{{Chain: "OUTPUT", Rule: table.Chains[1].Rules[0]}}}
	c, err := r.cut(table)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := c.changes(table)
	if err != nil {
		t.Fatal(err)
	}
	size := 0
	var kinds []string
	for _, m := range messages {
		size += length(m)
		kinds = append(kinds, map[netlink.HeaderType]string{
			unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_DELRULE:  "rules",
			unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_DELCHAIN: "chain",
		}[m.Header.Type])
	}
	if got, want := strings.Join(kinds, " "), "rules rules rules chain chain"; got != want {
		t.Errorf("changes are %s, want %s", got, want)
	}
	for room, want := range map[int]int{size: 1, size - 1: 2, length(messages[0]) * 2: 3, 1: 5} {
		parts := portions(messages, room)
		if len(parts) != want || !reflect.DeepEqual(slices.Concat(parts...), messages) {
			t.Errorf("with room for %d of %d bytes there are %d parts, want %d", room, size, len(parts), want)
		}
	}
}

func TestDecodesARule(t *testing.T) {
	o, err := decodeRule([]byte(aRule))
	if want := (object{chain: "A", rule: Rule{Target: "B", Jump: true, Comment: "hi"}}); o != want || err != nil {
		t.Errorf("got %+v, %v, want %+v", o, err, want)
	}
}
