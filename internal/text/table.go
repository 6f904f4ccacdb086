package text

import (
	"slices"
	"strings"
)

// Cell has the title of a column and a value in it.
type Cell [2]string

// Row is a row of a table; only wide tables have the cells in Wide.
type Row struct{ Cells, Wide []Cell }

// Table writes rows that have the same columns, below their titles.
type Table struct {
	Out  *Columns
	Wide bool

	titled bool
}

// Add writes rows.
func (t *Table) Add(rows ...Row) {
	for _, r := range rows {
		cells := r.Cells
		if t.Wide {
			cells = slices.Concat(r.Cells, r.Wide)
		}
		titles, values := make([]string, len(cells)), make([]string, len(cells))
		for i, c := range cells {
			titles[i], values[i] = c[0], c[1]
		}
		if !t.titled {
			t.titled = true
			t.Out.Row(titles...)
		}
		t.Out.Row(values...)
	}
}

// Printed returns what v prints.
func Printed(v interface{ Print(out *Columns) }) string {
	var b strings.Builder
	out := NewColumns(&b)
	v.Print(out)
	_ = out.Flush() // to memory
	return b.String()
}
