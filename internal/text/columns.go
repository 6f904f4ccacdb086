package text

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Columns writes text whose cells are aligned. Cells are made to fit into a line (Line). Errors are reported by Flush.
type Columns struct {
	Indent string // in front of each row and field

	out *tabwriter.Writer
}

// NewColumns returns a Columns that writes to w when it is flushed.
func NewColumns(w io.Writer) *Columns {
	return &Columns{out: tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)}
}

// Row writes a row of cells, with a dash for each empty cell.
func (c *Columns) Row(cells ...string) {
	line := make([]string, len(cells))
	for i, cell := range cells {
		line[i] = cmp.Or(Line(cell), "-")
	}
	c.Printf("%s%s\n", c.Indent, strings.Join(line, "\t"))
}

// Field writes a name and a value, but nothing if the value is empty.
func (c *Columns) Field(name, value string) {
	if value != "" {
		c.Printf("%s%s\t%s\n", c.Indent, name, Line(value))
	}
}

// Printf writes text as it is. A line without a tab ends the columns above it; the columns below it are aligned
// separately.
func (c *Columns) Printf(format string, args ...any) { fmt.Fprintf(c.out, format, args...) }

// Flush writes everything to the underlying writer.
func (c *Columns) Flush() error { return c.out.Flush() }
