package inspect

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/health"
	"github.com/sluice-proxy/sluice/internal/text"
	"github.com/sluice-proxy/sluice/internal/web"
)

// Print writes the status as text. It describes problems in full and leaves out most fields that report none.
func (s Status) Print(out *text.Columns) {
	p := &page{out, s.At}
	state := s.Health.String()
	if n := len(s.Warnings); n > 0 {
		state += ", " + text.Count(n, "warning")
	}
	if m := s.Mode; m.Configured != "" {
		state += fmt.Sprintf("; mode %s serves in place of mode %s", m.Name, m.Configured)
	}
	p.Mark(s.mark())
	p.Printf("Sluice %s, pid %d, running for %s: %s\n\n", s.Version, s.PID, p.since(s.Since), state)
	for i, why := range s.Warnings {
		p.Mark(text.Warning)
		p.Field([]string{"Attention", ""}[min(i, 1)], text.Line(why))
	}
	s.identity(p)
	s.writes(p)
	s.configuration(p)
	s.lists(p)
}

// mark returns how the first line is highlighted.
func (s Status) mark() text.Mark {
	switch {
	case s.Health.State != health.Healthy:
		return text.Bad
	case len(s.Warnings) > 0:
		return text.Warning
	}
	return text.Good
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

func (s Status) identity(p *page) {
	m := s.Mode
	p.Field("Mode", m.Name+ifSet(" in place of %s", m.Configured)+ifSet(" (%s)", m.Reason))
	p.Field("", ifSet("mode "+m.Configured+" does not work here: %s", m.Fallback))
	p.Field("Rules", ifSet("written %s", m.How))
	if m.Transient {
		p.Field("While stopped", "Services are not served")
	}
	p.Field("Families", strings.Join(s.Families, ", "))
	node := s.Node.Name + ifSet(", zone %s", s.Node.Zone) + ifSet(", %s", text.Join(s.Node.Addresses, ", "))
	if s.Node.Leaving {
		node += ", leaving the cluster"
	}
	p.Field("Node", node)
	s.direct(p)
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
	if c := s.Contest; c.Active() {
		p.Field("Contested", fmt.Sprintf("for %s by %s: %s, last %s", p.since(c.Since), cmp.Or(c.By, "an unknown program"),
			text.Count(c.Repairs, "repair"), c.What))
	}
	p.Field("Edits of others", ifSet("are detected only by periodic comparisons of all rules: %s", s.WatchTrouble))
	lag := "none"
	if l := s.Lag; !l.Since.IsZero() {
		lag = fmt.Sprintf("%s: %s and %s wait", p.since(l.Since),
			text.Count(l.Services, "Service change"), text.Count(l.Slices, "EndpointSlice change"))
	}
	p.Field("Lag", lag)
	p.Field("Last write failed", s.Error)
	if s.Unlisted != "" {
		p.Field("Programmed", "unknown: "+s.Unlisted)
		return
	}
	c := s.Counts
	p.Field("Programmed", fmt.Sprintf("%s, %s, %s, %s", text.Count(c.Services, "service"), text.Count(c.Ports, "port"),
		text.Count(c.Frontends, "frontend"), text.Count(c.Backends, "backend")))
	if c.Hashed > 0 {
		p.Field("Hash tables", fmt.Sprintf("%s, checksum %s", text.Count(c.Hashed, "port"), c.Tables))
	}
	p.Field("Not programmed", count(c.NotProgrammed, "service", "(see sluice get services)"))
	pending := count(s.Pending, "service", "(not in the kernel yet, or not completely)")
	p.Field("Pending", cmp.Or(ifSet("unknown: %s", s.Busy), pending))
	if s.Refused > 0 {
		p.Field("Refused", count(s.Refused, "service", "by the kernel (see sluice get services --problems)"))
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
		p.Field("", "changed: takes effect in "+Duration(max(0, c.Due.Sub(p.now))).String())
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
	p.Indent = "  "
	list(p, "Servers", s.Servers, func(v web.State) []text.Cell {
		state := cmp.Or(v.Error, "listening")
		if v.Address == "" {
			state = "off"
		}
		return []text.Cell{{"NAME", v.Name}, {"ADDRESS", v.Address}, {"STATE", state}}
	})
	list(p, "Host settings", s.HostSettings, func(h HostSetting) []text.Cell {
		state := "ok"
		if h.Error != "" {
			state = "failed"
		}
		return []text.Cell{{"NAME", h.Name}, {"WANTED", h.Want}, {"WAS", h.Was}, {"IS", h.Is}, {"STATE", state}}
	})
	for _, h := range s.HostSettings { // the errors are sentences, too long for a column
		if h.Error != "" {
			p.Printf("  failed: %s\n", text.Line(h.Error))
		}
	}
	list(p, "Health ports that cannot be opened", s.HealthPorts, func(h HealthPort) []text.Cell {
		return []text.Cell{{"SERVICE", h.Service}, {"PORT", fmt.Sprint(h.Port)}, {"WHY", h.Error}}
	})
	list(p, "Problems with objects, the latest first", s.Problems, func(v Problem) []text.Cell {
		return []text.Cell{
			{"AGE", p.since(v.At)},
			{"COUNT", fmt.Sprint(v.Weight())},
			{"OBJECT", v.Object},
			{"FIELD", v.Field},
			{"VALUE", v.Value},
			{"REASON", v.Reason},
		}
	})
}

// list writes a title and a table, but nothing without values.
func list[T any](p *page, title string, all []T, cells func(T) []text.Cell) {
	if len(all) > 0 {
		p.Printf("\n%s\n", title)
	}
	t := text.Table{Out: p.Columns}
	for _, v := range all {
		t.Add(text.Row{Cells: cells(v)})
	}
}

// direct prints to which nodes this one passes connections on, and why not to the others.
func (s Status) direct(p *page) {
	d := s.Direct
	if d == nil {
		return
	}
	reached := 0
	for _, peer := range d.Peers {
		if peer.Why == "" {
			reached++
		}
	}
	p.Field("Direct", fmt.Sprintf("%s, owners %s, reaches %d of %s of other nodes",
		text.Count(d.Ports, "port"), d.Checksum, reached, text.Count(len(d.Peers), "address")))
	for _, peer := range d.Peers {
		if peer.Why != "" {
			p.Field("", fmt.Sprintf("not %s, %s: %s", peer.Node, peer.Family, peer.Why))
		}
	}
}

// outage is how long the source may not answer before that needs attention.
const outage = 5 * time.Minute

// warnings returns what needs attention, one sentence each: what clients notice first.
func (s Status) warnings() (all []string) {
	warn := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if s.Error != "" {
		warn("the last write to the kernel failed: %s", s.Error)
	}
	if s.Refused > 0 {
		warn("the kernel refuses the rules of %s (see sluice get services --problems)", text.Count(s.Refused, "Service"))
	}
	if s.Contest.Active() {
		warn("%s", s.Contest)
	}
	if s.KubeProxy != "" {
		warn("%s", s.KubeProxy)
	}
	if from := s.Source; from.Connected && from.Trouble != "" {
		warn("%s %s: %s", from.Kind, from.From, from.Trouble)
	} else if age := s.At.Sub(from.Since); !from.Connected && !from.Since.IsZero() && age >= outage {
		warn("%s %s does not answer for %s%s", from.Kind, from.From, Duration(age), ifSet(": %s", from.Trouble))
	}
	if n := s.Counts.NoBackends; n > 0 {
		warn("no usable backend: %s (see sluice get services --problems)", text.Count(n, "Service"))
	}
	if m := s.Mode; m.Configured != "" {
		warn("mode %s serves in place of mode %s: %s", m.Name, m.Configured, m.Fallback)
	}
	return append(all, s.ownWarnings()...)
}

// ownWarnings returns what needs attention in the daemon and its settings.
func (s Status) ownWarnings() (all []string) {
	warn := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	for _, v := range s.Servers {
		if v.Error != "" {
			warn("server %s: %s", v.Name, v.Error)
		}
	}
	for _, h := range s.HealthPorts {
		warn("the health check port %d of Service %s cannot be opened: %s", h.Port, h.Service, h.Error)
	}
	if s.WatchTrouble != "" {
		warn("edits of others are detected only by periodic comparisons: %s", s.WatchTrouble)
	}
	if why := s.Configuration.Refused; why != "" {
		warn("the changed configuration file is not in force: %s", why)
	}
	for _, why := range s.Configuration.Warnings {
		warn("configuration: %s", why)
	}
	for _, h := range s.HostSettings {
		if h.Error != "" {
			warn("host setting %s: %s", h.Name, h.Error)
		}
	}
	return all
}
