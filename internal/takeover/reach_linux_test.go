package takeover

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/testing/iptablestest"
)

// beyondReach is a node with leftovers in both variants, of which the legacy one cannot be changed.
func beyondReach(t *testing.T) *node {
	t.Helper()
	var all []iptables.Outline
	for _, v := range []iptables.Variant{iptables.Legacy, iptables.NFT} {
		tables, err := afterIPTables(v).chains.Outlines(t.Context(), iptables.AllRules)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, tables...)
	}
	n := &node{chains: iptablestest.NewKernel(all...)}
	n.chains.Fail = func(verb string) error {
		if verb == "remove legacy" {
			return fmt.Errorf("%w: no programs", iptables.ErrBeyondReach)
		}
		return nil
	}
	return n
}

const (
	stays = "cannot remove leftovers of iptables-legacy (3 chains and 1 rule in iptables-legacy nat): " +
		"legacy tables cannot be changed from here: no programs; do this"
	inNFT = "removed iptables-nft: 3 chains and 1 rule in iptables-nft nat"
)

// Rules that cannot be removed stay, and status, log and an Event name them and the remedy, each once. They are
// removed as soon as possible.
func TestLegacyRulesBeyondReach(t *testing.T) {
	n := beyondReach(t)
	var events []string
	playWith(t, n, Options{RecordLeft: func(note string) { events = append(events, note) }}, func(s *stage) {
		s.controller.platform.rules.remedy = "do this"
		close(s.ready)
		state := s.after(time.Hour)
		compare(t, "in words", "retrying: "+stays+"\n"+inNFT, strings.Join(state.Lines(), "\n"))
		if state.Leftovers[IPTablesLegacy] != 4 || state.Leftovers[IPTablesNFT] != 0 {
			t.Errorf("state: %+v", state)
		}
		compare(t, "log", `msg="Removed leftovers of kube-proxy or of another mode" mechanism=iptables-nft `+
			`removed="3 chains and 1 rule in iptables-nft nat"
msg="Cannot remove all leftovers, retrying" error="`+stays+`"
`, s.said())
		compare(t, "events", "Sluice "+stays, strings.Join(events, "\n"))
		s.chains.Fail = nil
		state = s.after(time.Minute)
		if len(state.Leftovers) > 0 || state.Removed[IPTablesLegacy] != 4 || state.Err != nil {
			t.Errorf("when it can: %+v", state)
		}
	})
}

// A node that is not clean is an error of Cleanup, with the remedy.
func TestCleanupFailsForRulesBeyondReach(t *testing.T) {
	r := beyondReach(t).rules()
	r.remedy = "do this"
	a, err := cleanup(t.Context(), r, silent(), Options{})
	if err == nil || err.Error() != stays {
		t.Errorf("got %v", err)
	}
	compare(t, "account", inNFT, strings.Join(a.Lines(), "\n"))
}

// An Event has room for the longest remedy.
func TestTheRemediesFitIntoAnEvent(t *testing.T) {
	const room, others = 1024, 600
	for _, remedy := range []string{Remedy, remedyCleanup} {
		if len(remedy) > room-others {
			t.Errorf("%d bytes: %s", len(remedy), remedy)
		}
	}
}
