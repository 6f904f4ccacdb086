package inspect

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/text"
)

// WriteText writes the status as text. It describes problems in full and leaves out most
// fields that report none.
func (s Status) WriteText(w io.Writer) error {
	p := &page{text.NewColumns(w), s.At}
	p.Printf("Sluice %s, pid %d, running for %s: %s\n\n", s.Version, s.PID, p.since(s.Since), s.Health)
	s.identity(p)
	s.writes(p)
	s.configuration(p)
	s.lists(p)
	return p.Flush()
}

// page is text in columns with ages relative to a time.
type page struct {
	*text.Columns

	now time.Time
}

func (p *page) since(t time.Time) string { return Duration(max(0, p.now.Sub(t))).String() }
func (p *page) ago(t time.Time) string   { return p.since(t) + " ago" }

// ifSet returns a format applied to a value, but nothing for an empty value.
func ifSet(format, value string) string {
	if value == "" {
		return ""
	}
	return fmt.Sprintf(format, value)
}

// String returns the state and the reason for it.
func (h Health) String() string { return string(h.State) + ifSet(" (%s)", h.Reason) }

func (s Status) identity(p *page) {
	p.Field("Mode", s.Mode.Name+ifSet(" (%s)", s.Mode.Reason))
	p.Field("Rules", ifSet("written %s", s.Mode.How))
	if s.Mode.Transient {
		p.Field("While stopped", "Services are not served")
	}
	p.Field("Families", strings.Join(s.Families, ", "))
	node := s.Node.Name + ifSet(", zone %s", s.Node.Zone) + ifSet(", %s", text.Join(s.Node.Addresses, ", "))
	if s.Node.Leaving {
		node += ", leaving the cluster"
	}
	p.Field("Node", node)
	source := strings.TrimSpace(s.Source.Kind + " " + s.Source.From)
	if s.Source.Connected {
		source += ", connected"
	} else {
		source += ", not connected"
	}
	if !s.Source.Since.IsZero() {
		source += " for " + p.since(s.Source.Since)
	}
	if !s.Source.LastEvent.IsZero() {
		source += ", last event " + p.ago(s.Source.LastEvent)
	}
	p.Field("Source", source+ifSet(", %s", s.Source.Trouble))
}

func (s Status) writes(p *page) {
	last := "none yet"
	if l := s.LastSync; !l.At.IsZero() {
		last = fmt.Sprintf("%s, took %s: %s for %s, cause: %s", p.ago(l.At), l.Took,
			text.Count(l.Steps, "step"), text.Count(l.Services, "service"), l.Cause)
	}
	p.Field("Last sync", last)
	if c := s.Contest; c != nil {
		p.Field("Contested", fmt.Sprintf("for %s by %s: %s, last %s", p.since(c.Since), cmp.Or(c.By, "an unknown program"),
			text.Count(c.Repairs, "repair"), c.What))
	}
	p.Field("Edits of others", ifSet("are detected only by periodic comparisons of all rules: %s", s.WatchTrouble))
	lag := "none"
	if l := s.Lag; !l.Oldest.IsZero() {
		lag = fmt.Sprintf("%s: %s and %s wait", p.since(l.Oldest),
			text.Count(l.Services, "Service change"), text.Count(l.Slices, "EndpointSlice change"))
	}
	p.Field("Lag", lag)
	p.Field("Last write failed", s.Error)
	c := s.Counts
	p.Field("Programmed", fmt.Sprintf("%s, %s, %s, %s", text.Count(c.Services, "service"), text.Count(c.Ports, "port"),
		text.Count(c.Frontends, "frontend"), text.Count(c.Backends, "backend")))
	p.Field("Not programmed", count(c.NotProgrammed, "service", "(see sluice get services)"))
	p.Field("Pending", cmp.Or(ifSet("unknown: %s", s.Busy), count(s.Pending, "service", "(not in the kernel yet, or not completely)")))
	if s.Refused > 0 {
		p.Field("Refused", count(s.Refused, "service", "by the kernel (see sluice get services)"))
	}
	p.Field("Rejected", count(c.Rejected, "problem", "with objects since the start"))
	p.Field("Compared", p.tallies(s.Comparisons))
	p.Field("Repaired", p.tallies(s.Repairs))
	p.Field("Adopted at start", fmt.Sprint(s.Adopted))
}

func count(n int, what, more string) string {
	if n == 0 {
		return "none"
	}
	return text.Count(n, what) + " " + more
}

func (p *page) tallies(list []Tally) string {
	causes := make([]string, 0, len(list))
	for _, t := range list {
		causes = append(causes, fmt.Sprintf("%s %d (last %s)", t.Cause, t.Count, p.ago(t.Last)))
	}
	return cmp.Or(strings.Join(causes, ", "), "never")
}

func (s Status) configuration(p *page) {
	c := s.Configuration
	file := cmp.Or(c.File, "flags")
	if !c.Loaded.IsZero() {
		file += ", in force for " + p.since(c.Loaded)
	}
	if c.Reloads > 0 {
		file += fmt.Sprintf(" (reload %d of this process)", c.Reloads)
	}
	p.Field("Configuration", file)
	read := ""
	if !c.RefusedAt.IsZero() {
		read = " as read " + p.ago(c.RefusedAt)
	}
	p.Field("", ifSet("not in force: the file"+read+": %s", c.Refused))
	if !c.Due.IsZero() {
		p.Field("", "changed: in force in "+Duration(max(0, c.Due.Sub(p.now))).String())
	}
	for _, warning := range c.Warnings {
		p.Field("", "warning: "+warning)
	}
	for i, line := range s.Takeover {
		p.Field([]string{"Take-over", ""}[min(i, 1)], line)
	}
}

// lists writes tables of servers, settings and problems, each below a title.
func (s Status) lists(p *page) {
	var servers, settings, ports, problems [][]string
	for _, v := range s.Servers {
		state := cmp.Or(v.Error, "listening")
		if v.Address == "" {
			state = "off"
		}
		servers = append(servers, []string{v.Name, v.Address, state})
	}
	for _, h := range s.HostSettings {
		state := "ok"
		if h.Error != "" {
			state = "failed"
		}
		settings = append(settings, []string{h.Name, h.Want, h.Was, h.Is, state})
	}
	for _, h := range s.HealthPorts {
		ports = append(ports, []string{h.Service, fmt.Sprint(h.Port), h.Error})
	}
	for _, v := range s.Problems {
		problems = append(problems, []string{p.since(v.At), fmt.Sprint(max(1, v.Count)), v.Object, v.Field, v.Value, v.Reason})
	}
	p.Indent = "  "
	p.table(servers, "Servers", "NAME", "ADDRESS", "STATE")
	p.table(settings, "Host settings", "NAME", "WANTED", "WAS", "IS", "STATE")
	for _, h := range s.HostSettings { // the errors are sentences, too long for a column
		if h.Error != "" {
			p.Printf("  failed: %s\n", text.Line(h.Error))
		}
	}
	p.table(ports, "Health ports that cannot be opened", "SERVICE", "PORT", "WHY")
	p.table(problems, "Problems with objects, the latest first", "AGE", "COUNT", "OBJECT", "FIELD", "VALUE", "REASON")
}

// table writes a title and rows, but nothing without rows.
func (p *page) table(rows [][]string, title string, columns ...string) {
	if len(rows) == 0 {
		return
	}
	p.Printf("\n%s\n", title)
	p.Row(columns...)
	for _, row := range rows {
		p.Row(row...)
	}
}

// short rounds a duration for people: "850µs", "3m12s", "5d3h".
func short(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < 10*time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return d.Round(time.Second).String()
	case d < day:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
}
