package text

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
)

// Columns writes text whose cells are aligned. Cells are made to fit into a line (Line). Errors are reported by Flush.
type Columns struct {
	Indent string // in front of each row and field

	out   *tabwriter.Writer
	lines int          // written so far
	marks map[int]Mark // of lines; nil: there are no colours
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
func (c *Columns) Printf(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	c.lines += strings.Count(text, "\n")
	_, _ = io.WriteString(c.out, text) // Flush reports errors
}

// Mark marks the next line.
func (c *Columns) Mark(m Mark) {
	if c.marks != nil && m != "" {
		c.marks[c.lines] = m
	}
}

// Flush writes everything to the underlying writer.
func (c *Columns) Flush() error { return c.out.Flush() }

// Cell has the title of a column and a value in it.
type Cell [2]string

// Row is a row of a table; only wide tables have the cells in Wide.
type Row struct {
	Cells, Wide []Cell
	Mark        Mark
}

// Table writes rows that have the same columns, below their titles. Columns do not become narrower after a Flush.
type Table struct {
	Out        *Columns
	Wide, Bare bool   // Bare: without titles
	Before     []Cell // in front of each row

	titled bool
	widths []int
}

// Add writes rows.
func (t *Table) Add(rows ...Row) {
	for _, r := range rows {
		cells := slices.Concat(t.Before, r.Cells)
		if t.Wide {
			cells = append(cells, r.Wide...)
		}
		titles, values := make([]string, len(cells)), make([]string, len(cells))
		for i, c := range cells {
			titles[i], values[i] = c[0], c[1]
		}
		if !t.titled && !t.Bare {
			t.add(titles)
		}
		t.titled = true
		t.Out.Mark(r.Mark)
		t.add(values)
	}
}

func (t *Table) add(cells []string) {
	last := len(cells) - 1
	t.widths = append(t.widths, make([]int, max(0, last-len(t.widths)))...)
	for i := range last {
		cells[i] = fmt.Sprintf("%-*s", t.widths[i], cmp.Or(Line(cells[i]), "-"))
		t.widths[i] = utf8.RuneCountInString(cells[i])
	}
	t.Out.Row(cells...)
}

// Printed returns what v prints.
func Printed(v interface{ Print(out *Columns) }) string {
	var b strings.Builder
	out := NewColumns(&b)
	v.Print(out)
	_ = out.Flush() // to memory
	return b.String()
}
