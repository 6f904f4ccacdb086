package tables

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
	"github.com/sluice-proxy/sluice/internal/kernel/nft"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

// theirs is a table in the manner of a proxy: rules lead to regular chains and
// to a map, and one chain is attached to each hook of interest.
const theirs = `
table ip theirs {
	map services { type ipv4_addr : verdict; elements = { 10.0.0.1 : goto service }; }
	map refused { type ipv4_addr : verdict; elements = { 10.0.0.3 : drop }; }
	chain in { type nat hook prerouting priority -100; jump services; }
	chain out { type nat hook output priority -100; jump services; }
	chain post { type nat hook postrouting priority 100; masquerade; }
	chain forward { type filter hook forward priority 0; ct state new ip daddr vmap @refused; }
	chain services { ip daddr vmap @services; }
	chain service { dnat to 10.0.0.2; }
}
table ip6 theirs { chain out { type filter hook output priority 0; }; }
table ip other { chain out { type filter hook output priority 0; }; chain c { }; }
`

func run(t *testing.T, netns int, input string, argv ...string) string {
	t.Helper()
	var out []byte
	kerneltest.Do(t, netns, func() error {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Stdin = strings.NewReader(input)
		var err error
		if out, err = cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", argv, out)
		}
		return nil
	})
	return string(out)
}

func TestTheNamedTablesAreFoundClosedAndDeletedAndNoOther(t *testing.T) {
	netns := kerneltest.Namespace(t)
	run(t, netns, theirs, "nft", "-f", "-")
	tables := New(Options{NetNS: netns})
	ip4, ip6 := nft.Table{Family: nft.IP4, Name: "theirs"}, nft.Table{Family: nft.IP6, Name: "theirs"}
	absent := nft.Table{Family: nft.IP6, Name: "other"}

	found, err := tables.Find(t.Context(), ip4, ip6, absent)
	if err != nil {
		t.Fatal(err)
	}
	want := []Table{
		{Table: ip4, Chains: 6, Entrances: []string{"in", "out"}},
		{Table: ip6, Chains: 1, Entrances: []string{"out"}},
	}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Fatalf("found (-want +got):\n%s", diff)
	}

	for range 2 { // the second time they are gone
		if err := tables.Close(t.Context(), found...); err != nil {
			t.Fatalf("close: %v", err)
		}
	}
	found, err = tables.Find(t.Context(), ip4, ip6)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Table{{Table: ip4, Chains: 4}, {Table: ip6}}, found); diff != "" {
		t.Fatalf("closed (-want +got):\n%s", diff)
	}

	for range 2 {
		if err := tables.Delete(t.Context(), ip4, ip6); err != nil {
			t.Fatalf("delete: %v", err)
		}
	}
	if got := run(t, netns, "", "nft", "list", "tables"); got != "table ip other\n" {
		t.Errorf("tables left: %q, want that of others", got)
	}
}

func TestNothingIsFoundWhereThereIsNothing(t *testing.T) {
	found, err := New(Options{NetNS: kerneltest.Namespace(t)}).Find(t.Context(), nft.Table{Family: nft.IP4, Name: "theirs"})
	if err != nil || found != nil {
		t.Errorf("got %v, %v", found, err)
	}
}
