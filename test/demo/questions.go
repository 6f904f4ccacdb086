//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"github.com/sluice-proxy/sluice/test/lab"
)

// questions runs queries of the running Sluice, and checks its explanations with connections.
func (t *tour) questions() error {
	t.head("Ask: question the running process, then check its answers with connections")
	t.ask("status", "Sluice", "Mode", "Families", "Last sync", "Programmed", "Repaired")
	t.ask("get services dns")
	t.ask("explain " + t.client.Addr4().String() + " 10.96.0.10:80")

	const connections = 60
	at := netip.MustParseAddrPort
	ways := []way{
		{client: "pod", from: t.client, to: at("10.96.0.10:80")},
		{client: "pod", from: t.client, to: at("[fd00:10:96::10]:80")},
		{client: "outside", from: t.Outside, to: at("192.168.0.2:30080")},
		{client: "outside", from: t.Outside, to: at("192.168.0.2:30040")},
		{client: "outside", from: t.Outside, to: at("[2001:db8:198::10]:80")},
		{client: "forbidden", from: t.Blocked, to: at("198.51.100.10:80")},
	}
	t.note("%-11s%-23s%-37s%d connections", "from", "to", "explain says of pods", connections)
	failed := len(t.failures)
	for _, w := range ways {
		explained, observed, err := t.compare(w, connections)
		if err != nil {
			t.fail("%s to %s: %v", w.client, w.to, err)
			continue
		}
		t.say("%-11s%-23s%-37s%s", w.client, w.to, explained, observed)
	}
	if len(t.failures) == failed {
		t.pass("Connections did what explain says: which pods answer, and which address they see.")
		t.addFact("Explain", "right about %d ways: backends, shares, the address they see", len(ways))
	}
	return nil
}

// explanation has the fields of `sluice explain -o json` that the demo uses.
type explanation struct {
	Cases []struct {
		Verdict   string `json:"verdict"`
		SourceNAT struct {
			Applied bool `json:"applied"`
		} `json:"sourceNAT"`
		Backends []struct {
			Address string `json:"address"`
			Chance  string `json:"chance"`
		} `json:"backends"`
	} `json:"cases"`
}

// compare returns the explanation of a way and the result of connections as text, and an error if they disagree.
func (t *tour) compare(w way, connections int) (explained, observed string, err error) {
	out, err := t.NodeA.Run("", t.options.sluice, "explain",
		w.from.Addr(w.to.Addr()).String(), w.to.String(), "-o", "json")
	if err != nil {
		return "", "", err
	}
	var e explanation
	if err := json.Unmarshal([]byte(out), &e); err != nil || len(e.Cases) != 1 {
		return "", "", fmt.Errorf("explain has %d cases, want 1: %w", len(e.Cases), err)
	}
	verdict := e.Cases[0].Verdict
	if verdict == "balanced" {
		return e.check(w.from.Repeat(connections, lab.Probe{Protocol: lab.TCP, To: w.to}))
	}
	r := w.from.Try(lab.Probe{Protocol: lab.TCP, To: w.to, Timeout: lab.Soon})
	if verdict != "dropped" || r.Outcome != lab.TimedOut {
		return "", "", fmt.Errorf("explain says %s, the connection was %s", verdict, r.Outcome)
	}
	return "dropped silently", "no answer", nil
}

// check compares the answers of connections with the backends that explain names,
// and the addresses that the backends saw.
func (e explanation) check(results []lab.Result) (explained, observed string, err error) {
	expected := e.Cases[0]
	spread := map[string]int{}
	for _, r := range results {
		if r.Outcome != lab.Answered || r.Masqueraded() != expected.SourceNAT.Applied {
			return "", "", fmt.Errorf("a connection was %s", r)
		}
		spread[r.Backend.String()]++
	}
	var numbers []int
	var counts []string
	for _, b := range expected.Backends {
		numbers, counts = append(numbers, spread[b.Address]), append(counts, count(spread[b.Address]))
		delete(spread, b.Address)
	}
	if len(spread) > 0 || !fair(numbers) {
		return "", "", fmt.Errorf("the backends of explain answered %v times, others %v", numbers, spread)
	}
	whom := "the client"
	if expected.SourceNAT.Applied {
		whom = "the node"
	}
	explained = "all to 1, which sees " + whom
	if n := len(expected.Backends); n > 1 {
		explained = fmt.Sprintf("%s each to %d, which see %s", expected.Backends[0].Chance, n, whom)
	}
	return explained, strings.Join(counts, " + ") + ", " + whom, nil
}
