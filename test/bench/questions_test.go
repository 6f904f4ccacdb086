//go:build linux

package main

import (
	"bytes"
	"strings"
	"testing"
)

// Every kind of query is answered while changes are written.
func TestMeasureQuestions(t *testing.T) {
	o := options{plane: "nftables", child: 100, changes: 20, sizes: []int{100}, dir: t.TempDir()}
	all, err := measureQuestions(o)
	if err != nil {
		t.Fatal(err)
	}
	for i, d := range all {
		asked := questionKinds()[i].path
		if d.P50 <= 0 || d.P99 < d.P50 || d.Max < d.P999 || d.Changes != 20 {
			t.Errorf("%s: %+v", d.Question, d)
		}
		if (d.Answers == 0) != (asked == "") {
			t.Errorf("%s: %d answers", d.Question, d.Answers)
		}
	}
	var table bytes.Buffer
	if err := printQuestions(&table, o, [][]delays{all}); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(table.String(), "\n| "); n != 1+len(all) {
		t.Errorf("the table has %d lines, want %d:\n%s", n, 1+len(all), table.String())
	}
}
