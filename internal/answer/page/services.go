package page

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/text"
)

// services lists a part of the Services that were asked for, or the backends of one.
func (d *document) services(ctx context.Context) nodes {
	search := form("services", input("q", "Search", d.asked.search, "a name, an address or a port"),
		el("label", class("check"), d.checkbox(), el("span", words("Only with problems"))), el("button", words("Search")))
	all, err := d.inspect.Services(ctx, inspect.Filter{})
	if err != nil {
		return nodes{section("services", "Services", search, fault(err))}
	}
	var rows []row
	found, first := 0, d.asked.page*maxServices
	for s := range all {
		if !d.asked.selects(s) {
			continue
		}
		if found >= first && found < first+maxServices {
			rows = append(rows, d.serviceRows(s)...)
		}
		found++
	}
	list := section("services", "Services", search,
		table(text.Count(found, "Service")+d.asked.criteria(), rows), d.pages(found))
	if d.asked.service == "" {
		return nodes{list}
	}
	return nodes{d.backends(ctx), list}
}

func (d *document) checkbox() node {
	box := el("input", attr{"type", "checkbox"}, attr{"name", "problems"}, attr{"value", "1"})
	if d.asked.problems != "" {
		attr{"checked", ""}.addTo(box.Node)
	}
	return box
}

func (q question) criteria() string {
	var out string
	if q.search != "" {
		out += fmt.Sprintf(" with %q", q.search)
	}
	if q.problems != "" {
		out += " with a problem"
	}
	return out
}

// selects reports whether a Service is one of those asked for.
func (q question) selects(s inspect.Service) bool {
	switch {
	case q.problems != "" && s.Problem == "":
		return false
	case q.search == "" || strings.Contains(s.Namespace+"/"+s.Name, q.search):
		return true
	}
	return slices.ContainsFunc(s.Rows(), func(r text.Row) bool {
		return slices.ContainsFunc(r.Cells, func(c text.Cell) bool { return strings.Contains(c[1], q.search) })
	})
}

// serviceRows returns the rows of a Service, as sluice get services has them.
func (d *document) serviceRows(s inspect.Service) []row {
	details := map[string]string{"NAME": d.list("service", "service", s.Namespace+"/"+s.Name)}
	var rows []row
	all := s.Rows()
	for _, r := range all[:min(len(all), maxPorts)] {
		line := row{cells: r.Cells, links: details}
		if r.Mark != "" {
			line.class = "problem"
		}
		rows = append(rows, line)
	}
	if n := len(all) - len(rows); n > 0 {
		name := slices.Clone(all[0].Cells[:2])
		rows = append(rows, row{cells: append(name, text.Cell{"PORT", fmt.Sprintf("%d more", n)}), links: details})
	}
	return rows
}

// list returns the URL of the same part of the list, except for the values of its query in pairs.
func (d *document) list(section string, pairs ...string) string {
	page := ""
	if d.asked.page > 0 {
		page = strconv.Itoa(d.asked.page)
	}
	return to(section, append([]string{"q", d.asked.search, "problems", d.asked.problems, "page", page}, pairs...)...)
}

// pages returns links to the other parts of the list.
func (d *document) pages(found int) nodes {
	count := (found + maxServices - 1) / maxServices
	if count <= 1 && d.asked.page == 0 {
		return nil
	}
	nav := el("nav", class("pages"), attr{"aria-label", "Pages of Services"})
	add := func(page int, label string) {
		link(d.list("services", "page", strconv.Itoa(page)), label).addTo(nav.Node)
	}
	if d.asked.page > 0 {
		add(min(d.asked.page, count)-1, "Previous")
	}
	el("span", words(fmt.Sprintf("Page %d of %d", d.asked.page+1, count))).addTo(nav.Node)
	if d.asked.page+1 < count {
		add(d.asked.page+1, "Next")
	}
	return nodes{nav}
}

// backends lists the endpoints of a Service, and why some get no connections.
func (d *document) backends(ctx context.Context) node {
	f, err := inspect.ParseFilter(d.asked.service, "")
	if err != nil {
		return section("service", "Service", fault(err))
	}
	title := "Service " + f.String()
	all, err := d.inspect.Backends(ctx, f)
	if err != nil {
		return section("service", title, fault(err))
	}
	var rows []row
	n := 0
	for b := range all {
		if n++; n > maxBackends {
			continue
		}
		r := row{}
		for _, line := range b.Rows() {
			r.cells = append(line.Cells[2:len(line.Cells):len(line.Cells)], line.Wide...)
		}
		if len(b.Pools) == 0 {
			r.class = "out"
		}
		rows = append(rows, r)
	}
	return section("service", title, table(text.Count(n, "endpoint"), rows), more(n-len(rows)),
		el("p", link(to("explain", "to", d.asked.service), "Explain a connection from this node"), words(" · "),
			link(d.list("services"), "Close")))
}

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
