//go:build linux

package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/google/nftables"

	"github.com/sluice-proxy/sluice/test/lab"
)

// flushes is how often another program deletes everything. After ten times in a
// row, sluice takes its time: two programs could be at odds for ever.
const flushes = 8

const (
	flushEvery = 500 * time.Millisecond // how long there are rules in between
	lostAfter  = 300 * time.Millisecond // without an answer; TCP sends again after a second
)

// gap is a time in which there were no rules: from before they were deleted
// until new connections worked.
type gap struct {
	begun, deleted, ended time.Time
}

// repair has another program delete all rules of the node, again and again.
func (t *tour) repair() error {
	t.head(fmt.Sprintf("Repair: another program deletes all rules of the node, %d times, under traffic", flushes))
	was, err := t.repairs()
	if err != nil {
		return err
	}
	quiet, err := t.openAll()
	if err != nil {
		t.fail("%v", err)
		return nil
	}
	flow := startTraffic(t.impatient())
	gaps, err := t.flush()
	made := flow.stop()
	if err != nil {
		return err
	}
	t.repaired(gaps, made)
	t.goOn(quiet)
	now, err := t.repairs()
	if err != nil {
		return err
	}
	if now-was != flushes {
		t.fail("The metric of repairs rose by %d, want %d.", now-was, flushes)
		return nil
	}
	t.pass("Its metrics tell: sluice_repairs_total{cause=\"foreign-edit\"} %d", now)
	return nil
}

// openAll opens a connection over each way.
func (t *tour) openAll() ([]*lab.Flow, error) {
	var out []*lab.Flow
	for _, p := range t.ways() {
		f, r := p.from.Open(lab.Probe{Protocol: lab.TCP, To: p.to})
		if f == nil {
			return nil, fmt.Errorf("%s: %s", p, r)
		}
		out = append(out, f)
	}
	return out, nil
}

// goOn asks a question on connections that have been quiet, and closes them.
func (t *tour) goOn(quiet []*lab.Flow) {
	broken := 0
	for _, f := range quiet {
		if f.Ask([]byte("still there?")).Outcome != lab.Answered {
			broken++
		}
		f.Close()
	}
	if broken > 0 {
		t.fail("%d of %d connections that were open and quiet are broken.", broken, len(quiet))
		return
	}
	t.pass("%d connections that were open, and quiet meanwhile, go on.", len(quiet))
	t.note("Without rules the kernel translates no addresses: connections in use then may break.")
}

// impatient are ways to a service for which a lost packet is a lost request.
func (t *tour) impatient() []path {
	out := t.webWays()
	for i := range out {
		out[i].timeout = lostAfter
	}
	return out
}

// flush deletes all rules, waits for them to be back, and does it again.
func (t *tour) flush() ([]gap, error) {
	var out []gap
	for range flushes {
		time.Sleep(flushEvery)
		conn, err := nftables.New(nftables.WithNetNSFd(t.NodeA.NetNSFD()))
		if err != nil {
			return nil, fmt.Errorf("open nftables: %w", err)
		}
		g := gap{begun: time.Now()}
		conn.FlushRuleset()
		if err := conn.Flush(); err != nil {
			return nil, fmt.Errorf("delete all rules: %w", err)
		}
		g.deleted = time.Now()
		if err := t.back(); err != nil {
			return nil, err
		}
		g.ended = time.Now()
		out = append(out, g)
	}
	time.Sleep(flushEvery) // for the last requests that may be lost
	return out, nil
}

// back waits until connections work again in both IP families.
func (t *tour) back() error {
	deadline := time.Now().Add(patience)
	for _, p := range t.webWays() {
		p.timeout = 10 * time.Millisecond
		for r := p.request(); r.Outcome != lab.Answered; r = p.request() {
			if time.Now().After(deadline) {
				return fmt.Errorf("%s after the rules were deleted: %s", p, r)
			}
		}
	}
	return nil
}

// repaired says how long the rules were away and what that cost.
func (t *tour) repaired(gaps []gap, made requests) {
	var times []time.Duration
	var within int
	for _, g := range gaps {
		times = append(times, g.ended.Sub(g.deleted))
		within += len(made.lost().underWay(g))
	}
	median, most := quantile(times, 0.5), quantile(times, 1)
	t.pass("New connections worked again after %s (median), %s at most, in both IP families.", millis(median), millis(most))
	lost := made.lost()
	after := max(0, len(lost)-within)
	if after > flushes {
		t.fail("%d requests were lost while the rules were there: %s", after, lost.why())
	}
	t.pass("%s requests, lost %d: %d under way while there were no rules, %d later.", count(len(made)), len(lost), within, after)
	t.learn("Repair", "all rules deleted %d times: back after %s, %s at most", len(gaps), millis(median), millis(most))
}

// underWay returns those that were, at some time of a gap.
func (r requests) underWay(g gap) requests {
	return slices.DeleteFunc(slices.Clone(r), func(q request) bool {
		return q.ended.Before(g.begun) || q.begun.After(g.ended)
	})
}

// repairs is how many foreign edits sluice has repaired, as its metrics say.
func (t *tour) repairs() (int, error) {
	text, err := t.metrics()
	return parseRepairs(text), err
}

func parseRepairs(metrics string) int {
	m := regexp.MustCompile(`(?m)^sluice_repairs_total\{cause="foreign-edit"\} (\d+)$`).FindStringSubmatch(metrics)
	if m == nil {
		return 0 // none yet
	}
	n, _ := strconv.Atoi(m[1]) // digits
	return n
}

// metrics reads what sluice says at the address that kube-proxy uses.
func (t *tour) metrics() (string, error) {
	at := netip.MustParseAddrPort("127.0.0.1:10249")
	var text []byte
	err := t.NodeA.Do(func() error {
		conn, err := net.DialTimeout("tcp", at.String(), time.Second)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		fmt.Fprintf(conn, "GET /metrics HTTP/1.0\r\nHost: %s\r\n\r\n", at)
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return err
		}
		defer func() { _ = answer.Body.Close() }()
		text, err = io.ReadAll(answer.Body)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("read metrics at %s: %w", at, err)
	}
	return string(text), nil
}
