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

func TestColumnsReportErrors(t *testing.T) {
	c := NewColumns(broken{})
	c.Row("a")
	if err := c.Flush(); err == nil || err.Error() != "broken" {
		t.Errorf("Flush = %v, want the error of the writer", err)
	}
}
