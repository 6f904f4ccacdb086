package text

import (
	"strings"
	"testing"
)

func TestColumns(t *testing.T) {
	var b strings.Builder
	c := NewColumns(&b)
	c.Field("Mode", "nftables")
	c.Field("Last write", "1s ago")
	c.Field("Error", "")
	c.Printf("\nServers\n")
	c.Indent = "  "
	c.Row("NAME", "ADDRESS", "STATE")
	c.Row("a\tname\x1b", "", "größer")
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	const want = "Mode        nftables\nLast write  1s ago\n\nServers\n  NAME     ADDRESS  STATE\n" +
		"  a name   -        größer\n"
	if got := b.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Columns keep their width after a Flush, so that rows that come later are below the others.
func TestTable(t *testing.T) {
	row := func(a, b, c string) Row { return Row{Cells: []Cell{{"A", a}, {"B", b}}, Wide: []Cell{{"C", c}}} }
	for _, tt := range []struct {
		wide, bare bool
		want       string
	}{
		{want: "A       B\nbigger  1\nä       -\n"},
		{wide: true, want: "A       B  C\nbigger  1  -\nä       -  x\n"},
		{bare: true, want: "bigger  1\nä       -\n"},
	} {
		var b strings.Builder
		table := Table{Out: NewColumns(&b), Wide: tt.wide, Bare: tt.bare}
		for _, r := range []Row{row("bigger", "1", ""), row("ä", "", "x")} {
			table.Add(r)
			if err := table.Out.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		if b.String() != tt.want {
			t.Errorf("%+v: got\n%s\nwant\n%s", tt, &b, tt.want)
		}
	}
}

func TestColumnsReportErrors(t *testing.T) {
	c := NewColumns(broken{})
	c.Row("a")
	if err := c.Flush(); err == nil || err.Error() != "broken" {
		t.Errorf("Flush = %v, want the error of the writer", err)
	}
}
