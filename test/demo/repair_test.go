//go:build linux

package main

import (
	"slices"
	"strings"
	"testing"
	"time"
)

const saved = `*nat
:KUBE-SVC-ONE - [0:0]
-A KUBE-SVC-ONE -m comment --comment "default/web:http -> 10.180.0.1:8080" -j KUBE-SEP-ONE
-A KUBE-SERVICES -d 10.96.0.100/32 -p tcp -m comment --comment "default/blog cluster IP" -m tcp --dport 80 -j KUBE-SVC-TWO
-A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-ONE
COMMIT
`

func TestClusterChain(t *testing.T) {
	rules := linesWith(saved, "-A ")
	if len(rules) != 3 || !slices.IsSorted(rules) {
		t.Errorf("rules %q", rules)
	}
	for vip, want := range map[string]string{"10.96.0.10": "KUBE-SVC-ONE", "10.96.0.100": "KUBE-SVC-TWO", "10.96.0.1": "", "10.96.0.": ""} {
		if got := clusterChain(rules, vip); got != want {
			t.Errorf("%s: %q, want %q", vip, got, want)
		}
	}
}

// Rows fit into a line, begin with an option, and are complete.
func TestFold(t *testing.T) {
	for _, rule := range linesWith(saved, "-A ") {
		rows := fold(rule)
		if got := strings.Join(rows, " "); got != rule {
			t.Errorf("%s became %s", rule, got)
		}
		for i, row := range rows {
			if len(row) > width || i > 0 && !strings.HasPrefix(row, "-") {
				t.Errorf("a row of %d is %q", len(row), row)
			}
		}
	}
}

func TestDuring(t *testing.T) {
	start := time.Unix(100, 0)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	all := requests{
		{began: at(0), ended: at(9)},
		{began: at(0), ended: at(11)},
		{began: at(12), ended: at(13)},
		{began: at(19), ended: at(30)},
		{began: at(21), ended: at(22)},
		{began: at(0), ended: at(99)},
	}
	want := []time.Time{at(11), at(13), at(30), at(99)}
	var got []time.Time
	for _, q := range all.during(gap{began: at(10), deleted: at(11), ended: at(20)}) {
		got = append(got, q.ended)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
