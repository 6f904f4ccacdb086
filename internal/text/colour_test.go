package text

import (
	"strings"
	"testing"
)

// Marked lines have a colour, which does not count as width, and text has none of its own.
func TestColours(t *testing.T) {
	var b strings.Builder
	table := Table{Out: NewColoured(&b)}
	for _, r := range []Row{
		{Cells: []Cell{{"A", "one\x1b[2J"}, {"B", "1"}}},
		{Cells: []Cell{{"A", "two"}, {"B", strings.Repeat("2", 300)}}, Mark: Bad},
		{Cells: []Cell{{"A", "three"}, {"B", "3"}}, Mark: Warning},
		{Cells: []Cell{{"A", "four"}, {"B", ""}}},
	} {
		table.Add(r)
	}
	table.Out.Mark(Good)
	table.Out.Printf("\u202e\n")
	if err := table.Out.Flush(); err != nil {
		t.Fatal(err)
	}
	want := "A        B\none [2J  1\n\x1b[31mtwo      " + strings.Repeat("2", 300) + "\x1b[0m\n" +
		"\x1b[33mthree    3\x1b[0m\nfour     -\n\x1b[32m\\u202e\x1b[0m\n"
	if got := b.String(); got != want {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
}
