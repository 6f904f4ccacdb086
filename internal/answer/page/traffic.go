package page

import (
	"context"
	"slices"

	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/text"
)

// maxBusiest and maxClients bound the lists of a page.
const (
	maxBusiest = 10
	maxClients = 5
)

// traffic lists the ports of Services with the most live connections, and the clients with the most.
func (d *document) traffic(ctx context.Context) node {
	var parts nodes
	if all, err := d.inspect.Traffic(ctx, inspect.Filter{}); err != nil {
		parts = append(parts, el("p", class("hint"), words(err.Error())))
	} else {
		parts = append(parts, table("The Service ports with the most live connections; sluice top prints all, and rates.",
			busiest(slices.Collect(all))))
	}
	if all, err := d.inspect.Clients(ctx, inspect.Filter{}); err == nil {
		var rows []row
		for c := range all {
			if len(rows) == maxClients {
				break
			}
			rows = append(rows, row{cells: c.Rows()[0].Cells})
		}
		parts = append(parts, table("The clients with the most entries in conntrack; sluice top clients prints more.", rows))
	}
	return section("traffic", "Traffic", parts)
}

// busiest returns the rows of the ports with the most live connections, and of those with as many the most so far.
func busiest(all []inspect.Traffic) (rows []row) {
	slices.SortStableFunc(all, func(a, b inspect.Traffic) int {
		return slices.Compare(
			[]uint64{b.Signals[plane.Live], b.Signals[plane.Connections]},
			[]uint64{a.Signals[plane.Live], a.Signals[plane.Connections]},
		)
	})
	for _, t := range all[:min(len(all), maxBusiest)] {
		rows = append(rows, row{
			cells: sums(t), links: map[string]string{"NAME": to("service", "service", t.Namespace+"/"+t.Service)},
		})
	}
	return rows
}

// sums returns the cells that need one reading only: a page has no rates.
func sums(t inspect.Traffic) (cells []text.Cell) {
	r := t.Rows()[0]
	for _, c := range slices.Concat(r.Cells, r.Wide) {
		switch c[0] {
		case "NAMESPACE", "NAME", "PORT", "LIVE", "CONNECTIONS", "FAILURES", "TABLE":
			cells = append(cells, c)
		}
	}
	return cells
}
