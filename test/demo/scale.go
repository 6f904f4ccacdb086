//go:build linux

package main

import (
	"fmt"
	"strings"
	"time"
)

// settling is how long after a change its traffic is not counted as balanced
// yet; how long it really took is measured.
const settling = 300 * time.Millisecond

// era is a time in which a Service had some backends.
type era struct {
	pods  []pod
	begun time.Time // the manifest was in place
	next  time.Time // the manifest of the next era was; requests begun later count
}

// scale changes the number of backends while traffic flows.
func (t *tour) scale() error {
	paths := t.webWays()
	t.head(fmt.Sprintf("Scale while traffic flows: 3, 5, 1 backends, %s requests a second", count(perPath*len(paths))))
	flow := startTraffic(paths)
	eras := []era{{pods: t.pods[:3], begun: time.Now().Add(-settling)}}
	pause()
	for _, n := range []int{5, 1} {
		now, err := t.manifests.scale("web.yaml", addrs(t.pods[:n]))
		if err != nil {
			flow.stop()
			return err
		}
		eras[len(eras)-1].next = now
		eras = append(eras, era{pods: t.pods[:n], begun: now})
		pause()
	}
	made := flow.stop()
	eras[len(eras)-1].next = time.Now()
	t.note("%-15s%s", "", t.labels())
	for _, e := range eras {
		t.spread(e, made)
	}
	t.note("Pods that leave keep running while they drain, as in a cluster.")
	t.reaction(eras, made)
	t.losses("Scaling", made)
	return nil
}

func (t *tour) labels() string {
	var b strings.Builder
	for _, p := range t.pods {
		fmt.Fprintf(&b, "%-15s", p.label)
	}
	return b.String()
}

// spread shows the balance of one era.
func (t *tour) spread(e era, made requests) {
	settled := made.between(e.begun.Add(settling), e.next)
	counts := settled.spread(e.pods)
	name := fmt.Sprintf("%d backends", len(e.pods))
	if len(e.pods) == 1 {
		name = "1 backend"
	}
	t.say("%-15s%s", name, t.bars(counts, 8))
	if chance(counts) < unfair {
		t.fail("The spread over %d backends is not what fair chance gives.", len(e.pods))
	}
	if strays := len(settled) - len(settled.answeredBy(addrs(e.pods))) - len(settled.lost()); strays > 0 {
		t.fail("%d requests went to a backend that had left %v before.", strays, settling)
	}
}

// reaction says how soon traffic followed the manifest.
func (t *tour) reaction(eras []era, made requests) {
	up, down := eras[1], eras[2]
	joined := made.between(up.begun.Add(-time.Second), down.begun).answeredBy(addrs(t.pods[3:]))
	if len(joined) == 0 {
		t.fail("No request reached a new backend.")
		return
	}
	first := joined[0]
	for _, q := range joined {
		if q.ended.Before(first.ended) {
			first = q
		}
	}
	arrived := first.ended.Sub(up.begun)
	t.pass("The first request reached a new backend %s after the file was written.", millis(arrived))
	t.learn("Scale up", "%s from the file to the first request on a new backend", millis(arrived))

	late := made.between(down.begun, down.next).answeredBy(addrs(t.pods[1:]))
	var last time.Duration
	for _, q := range late {
		last = max(last, q.begun.Sub(down.begun))
	}
	t.pass("The last request for a removed one began %s after.", millis(last))
	t.learn("Scale down", "%s from the file to the last request on a removed backend", millis(last))
}

// losses counts requests without an answer.
func (t *tour) losses(what string, made requests) {
	lost := made.lost()
	if len(made) == 0 {
		t.fail("No request was made.")
		return
	}
	if len(lost) > 0 {
		t.fail("%s requests, lost %d: %s", count(len(made)), len(lost), lost.why())
		return
	}
	times := made.times()
	t.pass("%s requests, %s. Median %s, p99 %s, slowest %s.", count(len(made)), t.paint(strong, "lost 0"),
		millis(quantile(times, 0.5)), millis(quantile(times, 0.99)), millis(quantile(times, 1)))
	t.learn(what, "%s requests, lost 0; p99 %s", count(len(made)), millis(quantile(times, 0.99)))
}
