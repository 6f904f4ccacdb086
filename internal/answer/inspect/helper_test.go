package inspect

import (
	"iter"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/text"
)

// tabulate returns a table as people see it.
func tabulate[T interface{ Rows() []text.Row }](list []T, wide bool) string {
	var out strings.Builder
	table := &text.Table{Out: text.NewColumns(&out), Wide: wide}
	for _, v := range list {
		table.Add(v.Rows()...)
	}
	_ = table.Out.Flush() // to memory
	return out.String()
}

func must[T any](seq iter.Seq[T], err error) []T {
	if err != nil {
		panic(err)
	}
	return slices.Collect(seq)
}
