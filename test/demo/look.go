//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/sluice-proxy/sluice/internal/explain"
	"github.com/sluice-proxy/sluice/test/lab"
)

// look asks the running sluice what it does, and sees whether it is so.
func (t *tour) look() error {
	t.head("Look: ask the running process, then see whether it is so")
	t.ask([]string{"status"}, func(line string) bool {
		return starts(line, "Sluice", "Mode", "Families", "Last sync", "Programmed", "Repaired")
	})
	t.ask([]string{"get", "services", "dns"}, func(string) bool { return true })
	t.ask([]string{"explain", t.client.Addr4().String(), "10.96.0.10:80"}, func(string) bool { return true })
	t.foretold()
	return nil
}

// starts says whether a line starts with one of the words.
func starts(line string, words ...string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return strings.HasPrefix(line, w) })
}

// ask shows a command, and some lines of what it prints.
func (t *tour) ask(argv []string, shown func(line string) bool) {
	t.say("%s", t.paint(blue, "$ sluice "+strings.Join(argv, " ")))
	out, err := t.NodeA.Run("", append([]string{t.options.sluice}, argv...)...)
	if err != nil {
		t.fail("%v", err)
		return
	}
	seen := 0
	for line := range strings.Lines(out) {
		if shown(line) {
			t.note("%s", clip(strings.TrimRight(line, "\n "), 95))
			seen++
		}
	}
	if seen == 0 {
		t.fail("It printed nothing of interest:\n%s", out)
	}
	fmt.Fprintln(t)
}

// clip cuts a text off at a width.
func clip(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:width-1]) + "…"
}

// question is one that explain is asked.
type question struct {
	who  string
	from *lab.Host
	to   netip.AddrPort
}

// foretold compares what explain says with what connections do.
func (t *tour) foretold() {
	const connections = 60
	t.note("%-11s%-23s%-37s%s", "from", "to", "explain said of pods", fmt.Sprintf("%d connections", connections))
	right := 0
	questions := t.questions()
	for _, q := range questions {
		said, did, err := t.compare(q, connections)
		if err != nil {
			t.fail("%s to %s: %v", q.who, q.to, err)
			continue
		}
		t.say("%-11s%-23s%-37s%s", q.who, q.to, said, did)
		right++
	}
	if right < len(questions) {
		return
	}
	t.pass("It was as explain had said: who answers, and which address the pod sees.")
	t.learn("Look", "explain foretold %d ways: backends, shares, the address seen", right)
}

func (t *tour) questions() []question {
	at := netip.MustParseAddrPort
	return []question{
		{"pod", t.client, at("10.96.0.10:80")},
		{"pod", t.client, at("[fd00:10:96::10]:80")},
		{"outside", t.Outside, at("192.168.0.2:30080")},
		{"outside", t.Outside, at("192.168.0.2:30040")},
		{"outside", t.Outside, at("[2001:db8:198::10]:80")},
		{"not let in", t.Blocked, at("198.51.100.10:80")},
	}
}

// compare returns in words what explain says of a connection and what
// connections did; an error if that is not the same.
func (t *tour) compare(q question, connections int) (said, did string, err error) {
	out, err := t.NodeA.Run("", t.options.sluice, "explain", q.from.Addr(q.to.Addr()).String(), q.to.String(), "-o", "json")
	if err != nil {
		return "", "", err
	}
	var answer explain.Answer
	if err := json.Unmarshal([]byte(out), &answer); err != nil {
		return "", "", fmt.Errorf("read what explain said: %w", err)
	}
	if len(answer.Cases) != 1 {
		return "", "", fmt.Errorf("explain knows %d cases, want 1: %s", len(answer.Cases), answer.Unanswered)
	}
	expected := answer.Cases[0]
	if expected.Verdict != explain.Balanced {
		r := q.from.Try(lab.Probe{Protocol: lab.TCP, To: q.to, Timeout: lab.Soon})
		if expected.Verdict != explain.Dropped || r.Outcome != lab.TimedOut {
			return "", "", fmt.Errorf("explain said %s, the client was %s", expected.Verdict, r.Outcome)
		}
		return "dropped without a word", "no answer", nil
	}
	counts, err := observe(expected, q.from.Repeat(connections, lab.Probe{Protocol: lab.TCP, To: q.to}))
	if err != nil {
		return "", "", err
	}
	whom := "the client"
	if expected.SourceNAT.Applied {
		whom = "the node"
	}
	return foretell(expected.Backends) + " " + whom, strings.Join(counts, " + ") + ", " + whom, nil
}

// foretell says in words who answers how often.
func foretell(backends []explain.Backend) string {
	if len(backends) == 1 {
		return "all to 1, which sees"
	}
	return fmt.Sprintf("%s each to %d, which see", backends[0].Chance, len(backends))
}

// observe counts the answers of the backends that were foretold. It is an error
// if others answered, some had not their share, or the address was another.
func observe(expected explain.Case, results []lab.Result) (counts []string, err error) {
	spread := map[string]int{}
	for _, r := range results {
		if r.Outcome != lab.Answered || r.Masqueraded() != expected.SourceNAT.Applied {
			return nil, fmt.Errorf("a connection was %s", r)
		}
		spread[r.Backend.String()]++
	}
	var numbers []int
	for _, b := range expected.Backends {
		numbers = append(numbers, spread[b.Address])
		counts = append(counts, count(spread[b.Address]))
		delete(spread, b.Address)
	}
	if len(spread) > 0 || chance(numbers) < unfair {
		return nil, fmt.Errorf("the backends explain knew answered %v times, others %v", numbers, spread)
	}
	return counts, nil
}
