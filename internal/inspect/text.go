package inspect

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sluice-proxy/sluice/internal/text"
)

// WriteText writes the status as a person reads it: what is well in a word,
// what is not in full.
func (s Status) WriteText(w io.Writer) error {
	p := &page{out: tabwriter.NewWriter(w, 0, 8, 2, ' ', 0), now: s.At}
	p.printf("Sluice %s, pid %d, running for %s: %s\n\n", s.Version, s.PID, p.since(s.Since), s.Health)
	s.identity(p)
	s.writes(p)
	s.setup(p)
	s.lists(p)
	return p.out.Flush()
}

// String returns the state, and why.
func (h Health) String() string {
	if h.Reason == "" {
		return string(h.State)
	}
	return string(h.State) + " (" + h.Reason + ")"
}

func (s Status) identity(p *page) {
	p.row("Mode", s.Mode.Name+inBrackets(s.Mode.Reason))
	if s.Mode.How != "" {
		p.row("Rules", "written "+s.Mode.How)
	}
	if s.Mode.Transient {
		p.row("While stopped", "Services are not served")
	}
	p.row("Families", strings.Join(s.Families, ", "))
	node := []string{s.Node.Name}
	if s.Node.Zone != "" {
		node = append(node, "zone "+s.Node.Zone)
	}
	for _, a := range s.Node.Addresses {
		node = append(node, a.String())
	}
	if s.Node.Leaving {
		node = append(node, "leaving the cluster")
	}
	p.row("Node", strings.Join(node, ", "))
	p.row("Source", s.Source.text(p))
}

func (s Source) text(p *page) string {
	words := []string{strings.TrimSpace(s.Kind + " " + s.From)}
	state := "connected"
	if !s.Connected {
		state = "not connected"
	}
	if !s.Since.IsZero() {
		state += " for " + p.since(s.Since)
	}
	words = append(words, state)
	if !s.LastEvent.IsZero() {
		words = append(words, "last event "+p.ago(s.LastEvent))
	}
	if s.Trouble != "" {
		words = append(words, s.Trouble)
	}
	return strings.Join(words, ", ")
}

func (s Status) writes(p *page) {
	last := "none yet"
	if l := s.LastSync; !l.At.IsZero() {
		last = fmt.Sprintf("%s, took %s: %s for %s, cause: %s", p.ago(l.At), l.Took,
			text.Count(l.Steps, "step"), text.Count(l.Services, "service"), l.Cause)
	}
	p.row("Last sync", last)
	if c := s.Contest; c != nil {
		p.row("Contested", fmt.Sprintf("for %s by %s: %s, last %s", p.since(c.Since), orElse(c.By, "an unknown program"),
			text.Count(c.Repairs, "repair"), c.What))
	}
	if s.WatchTrouble != "" {
		p.row("Edits of others", "are found only by comparing all rules now and then: "+s.WatchTrouble)
	}
	lag := "none"
	if l := s.Lag; !l.Oldest.IsZero() {
		lag = fmt.Sprintf("%s: %s and %s wait", p.since(l.Oldest),
			text.Count(l.Services, "Service change"), text.Count(l.Slices, "EndpointSlice change"))
	}
	p.row("Lag", lag)
	p.row("Last write failed", s.Error)
	c := s.Counts
	p.row("Programmed", fmt.Sprintf("%s, %s, %s, %s", text.Count(c.Services, "service"), text.Count(c.Ports, "port"),
		text.Count(c.Fronts, "front"), text.Count(c.Backends, "backend")))
	p.count("Not programmed", c.NotProgrammed, "service", "(sluice get services tells why)")
	if s.Busy != "" {
		p.row("Pending", "unknown: "+s.Busy)
	} else {
		p.count("Pending", s.Pending, "service", "(not in the kernel as they should be)")
	}
	if s.Refused > 0 {
		p.count("Refused", s.Refused, "service", "by the kernel (sluice get services tells why)")
	}
	p.count("Rejected", s.Counts.Rejected, "problem", "with objects since the start")
	p.row("Compared", p.tallies(s.Comparisons))
	p.row("Repaired", p.tallies(s.Repairs))
	p.row("Adopted at start", fmt.Sprint(s.Adopted))
}

func (s Status) setup(p *page) {
	c := s.Configuration
	file := c.File
	if file == "" {
		file = "flags"
	}
	if !c.Loaded.IsZero() {
		file += ", in force for " + p.since(c.Loaded)
	}
	if c.Reloads > 0 {
		file += fmt.Sprintf(" (reload %d of this process)", c.Reloads)
	}
	p.row("Configuration", file)
	if c.Refused != "" {
		file := "the file"
		if !c.RefusedAt.IsZero() {
			file += " as read " + p.ago(c.RefusedAt)
		}
		p.row("", "not in force: "+file+": "+c.Refused)
	}
	if !c.Due.IsZero() {
		p.row("", "changed: in force "+p.within(c.Due))
	}
	for i, line := range s.Takeover {
		p.row([]string{"Take-over", ""}[min(i, 1)], line)
	}
}

func (s Status) lists(p *page) {
	if len(s.Servers) > 0 {
		p.head("Servers", "NAME", "ADDRESS", "STATE")
		for _, v := range s.Servers {
			p.line(v.Name, orElse(v.Address, "-"), v.state())
		}
	}
	s.settings(p)
	if len(s.HealthPorts) > 0 {
		p.head("Health ports that cannot be opened", "SERVICE", "PORT", "WHY")
		for _, h := range s.HealthPorts {
			p.line(h.Service, fmt.Sprint(h.Port), h.Error)
		}
	}
	if len(s.Problems) == 0 {
		return
	}
	p.head("Problems with objects, the latest first", "AGE", "COUNT", "OBJECT", "FIELD", "VALUE", "REASON")
	for _, v := range s.Problems {
		p.line(p.since(v.At), fmt.Sprint(max(1, v.Count)), v.Object, orElse(v.Field, "-"), orElse(v.Value, "-"), v.Reason)
	}
}

func (v Server) state() string {
	if v.Address == "" {
		return "off"
	}
	return orElse(v.Error, "listening")
}

// settings writes those of the host. What went wrong is told below the table,
// as it takes sentences.
func (s Status) settings(p *page) {
	if len(s.HostSettings) == 0 {
		return
	}
	var wrong []string
	p.head("Host settings", "NAME", "WANTED", "WAS", "IS", "STATE")
	for _, h := range s.HostSettings {
		state := "ok"
		if h.Error != "" {
			state = "failed"
			wrong = append(wrong, h.Error)
		}
		p.line(h.Name, orElse(h.Want, "-"), orElse(h.Was, "-"), orElse(h.Is, "-"), state)
	}
	for _, why := range wrong {
		p.printf("  failed: %s\n", why)
	}
}

// page is text in columns.
type page struct {
	out *tabwriter.Writer
	now time.Time
}

// printf writes to the tabwriter, which tells errors when flushed.
func (p *page) printf(format string, args ...any) { fmt.Fprintf(p.out, format, args...) }

// row writes a fact, if there is one.
func (p *page) row(name, value string) {
	if value != "" {
		p.printf("%s\t%s\n", name, text.Line(value))
	}
}

func (p *page) count(name string, n int, what, more string) {
	if n == 0 {
		p.row(name, "none")
		return
	}
	p.row(name, text.Count(n, what)+" "+more)
}

func (p *page) head(title string, columns ...string) {
	p.printf("\n%s\n", title) // a line without tabs ends the columns above
	p.line(columns...)
}

func (p *page) line(cells ...string) {
	for i := range cells {
		cells[i] = text.Line(cells[i])
	}
	p.printf("  %s\n", strings.TrimRight(strings.Join(cells, "\t"), "\t"))
}

func (p *page) since(t time.Time) string { return short(max(0, p.now.Sub(t))) }
func (p *page) ago(t time.Time) string   { return p.since(t) + " ago" }

func (p *page) within(t time.Time) string { return "in " + short(max(0, t.Sub(p.now))) }

func (p *page) tallies(list []Tally) string {
	words := make([]string, 0, len(list))
	for _, t := range list {
		words = append(words, fmt.Sprintf("%s %d (last %s)", t.Cause, t.Count, p.ago(t.Last)))
	}
	return orElse(strings.Join(words, ", "), "never")
}

// short writes a duration as a person says it: "850µs", "3m12s", "5d3h".
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

func inBrackets(s string) string {
	if s == "" {
		return ""
	}
	return " (" + s + ")"
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}
