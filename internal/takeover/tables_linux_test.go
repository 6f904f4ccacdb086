package takeover

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

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

func runNft(t *testing.T, netns int, input string, args ...string) (out string) {
	t.Helper()
	kerneltest.Do(t, netns, func() error {
		cmd := exec.Command("nft", args...)
		cmd.Stdin = strings.NewReader(input)
		b, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("nft %v: %w: %s", args, err, b)
		}
		out = string(b)
		return nil
	})
	return out
}

func TestOnlyTheNamedTablesAreMadeDormantAndDeleted(t *testing.T) {
	netns := kerneltest.Namespace(t)
	runNft(t, netns, theirs, "-f", "-")
	door := tables{netns: netns}
	names := []nft.Table{{Family: nft.IP4, Name: "theirs"}, {Family: nft.IP6, Name: "theirs"}}
	find := func(names ...nft.Table) string {
		found, err := door.Find(t.Context(), names...)
		if err != nil {
			t.Fatal(err)
		}
		var words []string
		for _, o := range found {
			words = append(words, o.Table.String())
			for _, c := range o.Chains {
				words = append(words, c.Name)
			}
		}
		return strings.Join(words, " ")
	}
	compare(t, "none of this family", "", find(nft.Table{Family: nft.IP6, Name: "other"}))
	compare(t, "found", "ip theirs in out post forward services service ip6 theirs out", find(names...))
	found, err := door.Find(t.Context(), names...)
	if err != nil {
		t.Fatal(err)
	}
	closed := ""
	r := &rules{tables: door, pause: func() { closed = find(names...) }}
	if err := r.removeTables(t.Context(), findings{tables: found}); err != nil {
		t.Fatal(err)
	}
	compare(t, "closed", "ip theirs post forward services service ip6 theirs", closed)
	if err := door.Delete(t.Context(), names...); err != nil {
		t.Errorf("delete tables that are gone: %v", err)
	}
	compare(t, "left", "table ip other\n", runNft(t, netns, "", "list", "tables"))
}
