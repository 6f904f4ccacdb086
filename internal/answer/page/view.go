package page

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/answer/explain"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/health"
	"github.com/sluice-proxy/sluice/internal/text"
)

// Limits of a page, whatever a cluster has.
const (
	maxServices = 100
	maxPorts    = 16 // of a Service in the list
	maxBackends = 200
	maxEvents   = 50
	maxLeftOut  = 50
)

// question is what a request asks.
type question struct {
	search   string // a part of any cell of a Service
	problems string // not empty: only Services with problems
	page     int    // of the list, from 0
	service  string // whose backends are listed
	from, to string // of connections
}

func questionOf(values url.Values) question {
	n, _ := strconv.ParseInt(values.Get("page"), 10, 32) // what is no number is the first page
	return question{
		search: strings.TrimSpace(values.Get("q")), problems: values.Get("problems"), page: max(0, int(n)),
		service: values.Get("service"), from: strings.TrimSpace(values.Get("from")), to: strings.TrimSpace(values.Get("to")),
	}
}

// to returns the URL of the page with values of its query, given as names and values, of which the last counts.
func to(section string, pairs ...string) string {
	values := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			values.Set(pairs[i], pairs[i+1])
		}
	}
	u := url.URL{Path: "./", RawQuery: values.Encode(), Fragment: section}
	return u.String()
}

// document is the page that answers a request.
type document struct {
	inspect *inspect.Inspector
	asked   question
	root    node
}

func (d *document) write(ctx context.Context) {
	s := d.inspect.Status(ctx)
	nav := el("nav", attr{"aria-label", "Sections"})
	for _, name := range []string{"Status", "Explain", "Traffic", "Services", "Events"} {
		link("#"+strings.ToLower(name), name).addTo(nav.Node)
	}
	d.root = frame(s, nav, status(s), d.explain(ctx), d.traffic(ctx), d.services(ctx), d.events(s.At))
}

// writePublic writes what everybody may read who can connect: as much as /statusz has.
func (d *document) writePublic(ctx context.Context) {
	s := d.inspect.Status(ctx)
	d.root = frame(s, node{}, status(s), section("services", "Services", el("p", words("Services, explanations and "+
		"events are shown only to clients on the node itself, at http://localhost or a loopback address. From elsewhere, "+
		"forward the port of the metrics: kubectl port-forward to the pod, or ssh -L."))))
}

// frame returns the whole document with its sections.
func frame(s inspect.Status, nav node, sections ...part) node {
	title := "Sluice"
	if s.Node.Name != "" {
		title += " on " + s.Node.Name
	}
	header := el("header", el("h1", words(title)))
	if nav.Node != nil {
		nav.addTo(header.Node)
	}
	return el("html", attr{"lang", "en"},
		el("head", el("meta", attr{"charset", "utf-8"}), el("title", words(title)),
			el("meta", attr{"name", "viewport"}, attr{"content", "width=device-width, initial-scale=1"}),
			el("meta", attr{"name", "color-scheme"}, attr{"content", "light dark"}),
			el("style", lines(style))),
		el("body", header, el("main", sections...),
			el("footer", words("Sluice "+s.Version+", as of "+s.At.Format(time.RFC3339)+". This page changes nothing."))))
}

func section(id, title string, parts ...part) node {
	heading := el("h2", attr{"id", id + "-title"}, words(title))
	return el("section", append([]part{attr{"id", id}, attr{"aria-labelledby", id + "-title"}, heading}, parts...)...)
}

func status(s inspect.Status) node {
	state := el("p", class("state good"), el("strong", words(s.Health.State)))
	switch {
	case s.Health.State != health.Healthy:
		state = el("p", class("state bad"), el("strong", words(s.Health.String())))
	case len(s.Warnings) > 0:
		state = el("p", class("state warn"), el("strong", words(s.Health.String())),
			words(", "+text.Count(len(s.Warnings), "warning")))
	}
	parts := []part{state}
	if len(s.Warnings) > 0 {
		list := el("ul")
		for _, why := range s.Warnings {
			el("li", words(why)).addTo(list.Node)
		}
		parts = append(parts, el("div", class("attention"), el("h3", words("Attention")), list))
	}
	return section("status", "Status", append(parts, counts(s), facts(summary(s)),
		el("details", el("summary", words("Everything that sluice status prints")), el("pre", lines(text.Printed(s)))))...)
}

// counts returns the numbers of a node at a glance.
func counts(s inspect.Status) node {
	list := el("dl", class("counts"))
	if s.Unlisted != "" {
		return list
	}
	for _, c := range []struct {
		name  string
		n     int
		class string // unless it is 0
	}{
		{"Services", s.Counts.Services, ""},
		{"Frontends", s.Counts.Frontends, ""},
		{"Backends", s.Counts.Backends, ""},
		{"Without backend", s.Counts.NoBackends, "warn"},
		{"Pending", s.Pending, "warn"},
		{"Refused", s.Refused, "bad"},
	} {
		cell := el("div", el("dt", words(c.name)), el("dd", words(strconv.Itoa(c.n))))
		if c.n > 0 {
			class(c.class).addTo(cell.Node)
		}
		cell.addTo(list.Node)
	}
	return list
}

func summary(s inspect.Status) []text.Cell {
	mode, source := s.Mode.Name, strings.TrimSpace(s.Source.Kind+" "+s.Source.From)
	if s.Mode.Reason != "" {
		mode += " (" + s.Mode.Reason + ")"
	}
	connected := "not connected"
	if s.Source.Connected {
		connected = "connected"
	}
	last := "none yet"
	if l := s.LastSync; !l.At.IsZero() {
		last = fmt.Sprintf("%s, %s for %s, took %s", ago(s.At, l.At), text.Count(l.Steps, "step"),
			text.Count(l.Services, "Service"), l.Took)
	}
	return []text.Cell{
		{"Mode", mode},
		{"Source", source + ", " + connected},
		{"Last write", last},
		{"Running for", text.Duration(max(0, s.At.Sub(s.Since)))},
		{"Programmed", s.Unlisted},
	}
}

func ago(now, t time.Time) string { return text.Duration(max(0, now.Sub(t))) + " ago" }

// fault returns an error in place of an answer.
func fault(err error) node { return el("p", class("error"), attr{"role", "alert"}, words(err.Error())) }

// input returns a field of a form with its label.
func input(name, label, value, example string) node {
	return el("label", el("span", words(label)), el("input", attr{"name", name}, attr{"value", value},
		attr{"placeholder", example}, attr{"autocomplete", "off"}, attr{"autocapitalize", "off"},
		attr{"spellcheck", "false"}))
}

// form returns a form that leads to a section.
func form(section string, parts ...part) node {
	return el("form", append([]part{attr{"action", "./#" + section}, attr{"method", "get"}}, parts...)...)
}

func (d *document) explain(ctx context.Context) node {
	source := d.asked.from
	if source == "" {
		source = "node"
	}
	parts := []part{
		form("explain", input("from", "From", source, "node, a pod or an address"),
			input("to", "To", d.asked.to, "default/web:80 or 10.96.0.10:53/udp"), el("button", words("Explain"))),
		el("p", class("hint"), words("Where a connection goes, and why. From is node for this node itself, "+
			"a pod of this node as namespace/name, or an address.")),
	}
	if d.asked.to == "" {
		return section("explain", "Explain", parts...)
	}
	return section("explain", "Explain", append(parts, d.answer(ctx, source))...)
}

func (d *document) answer(ctx context.Context, source string) part {
	q, err := explain.Parse(source, d.asked.to)
	if err != nil {
		return fault(err)
	}
	a, err := d.inspect.Explain(ctx, q)
	if err != nil {
		return fault(err)
	}
	var out nodes
	if a.Unanswered != "" {
		out = append(out, el("p", class("error"), attr{"role", "alert"}, words(a.Unanswered)))
	}
	for _, c := range a.Cases {
		out = append(out, el("article", el("h3", words(c.Headline(a.Source))),
			el("div", class("case"), picture(a.Source, c), facts(c.Facts())), endpoints(c)))
	}
	for _, n := range a.Notes {
		out = append(out, el("p", class("note"), words("Note: "+n)))
	}
	return out
}

// endpoints lists the backends of a case, and the endpoints that are left out with the reason.
func endpoints(c explain.Case) nodes {
	var in, out []row
	for _, b := range c.Backends[:min(len(c.Backends), maxBackends)] {
		in = append(in, row{cells: []text.Cell{
			{"CHANCE", b.Chance},
			{"BACKEND", b.Address},
			{"NODE", b.Node},
			{"ENDPOINTSLICE", b.Slice},
			{"PATH", strings.Join(b.Path, " -> ")},
			{"REMARKS", strings.Join(b.Remarks(), "; ")},
		}})
	}
	leftOut, foreign := c.OfFamily()
	for _, e := range leftOut[:min(len(leftOut), maxLeftOut)] {
		out = append(out, row{cells: []text.Cell{
			{"LEFT-OUT", e.Address}, {"REASON", e.Reason}, {"NODE", e.Node}, {"ENDPOINTSLICE", e.Slice},
		}})
	}
	lists := append(folded(text.Count(len(c.Backends), "backend"), in, len(c.Backends)),
		folded(text.Count(len(leftOut), "endpoint")+" left out", out, len(leftOut))...)
	if foreign > 0 {
		note := "Left out for the other IP family: " + text.Count(foreign, "endpoint") + "."
		lists = append(lists, el("p", class("hint"), words(note)))
	}
	return lists
}

// folded returns a table below its title, if it has any rows of all.
func folded(title string, rows []row, all int) nodes {
	if all == 0 {
		return nil
	}
	return nodes{el("details", el("summary", words(title)), table(title, rows), more(all-len(rows)))}
}

// more says how many rows a list does not show.
func more(n int) nodes {
	if n <= 0 {
		return nil
	}
	return nodes{el("p", class("hint"), words(strconv.Itoa(n)+" more are not shown here; commands print all."))}
}

func (d *document) events(now time.Time) node {
	all := d.inspect.Events()
	all = all[max(0, len(all)-maxEvents):]
	slices.Reverse(all)
	rows := make([]row, 0, len(all))
	for _, e := range all {
		object, links := "Node", map[string]string{}
		if e.Kind != "" {
			object = strings.TrimPrefix(e.Namespace+"/"+e.Name, "/")
		}
		if e.Kind == "Service" {
			links["OBJECT"] = to("service", "service", object)
		}
		rows = append(rows, row{class: strings.ToLower(string(e.Type)), links: links, cells: []text.Cell{
			{"TIME", e.At.Format(time.TimeOnly) + ", " + ago(now, e.At)},
			{"REASON", e.Reason},
			{"OBJECT", object},
			{"WHAT", e.Note},
		}})
	}
	return section("events", "Events", table("The latest events first; sluice events prints more.", rows))
}
