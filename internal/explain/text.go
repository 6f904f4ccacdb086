package explain

import (
	"cmp"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sluice-proxy/sluice/internal/route"
)

// String returns the answer for people to read.
func (a Answer) String() string {
	var b strings.Builder
	if a.Unanswered != "" {
		fmt.Fprintf(&b, "%s\n", a.Unanswered)
	}
	for i, c := range a.Cases {
		if i > 0 {
			b.WriteString("\n")
		}
		c.print(&b, a.Source)
	}
	if len(a.Notes) > 0 {
		b.WriteString("\n")
	}
	for _, n := range a.Notes {
		fmt.Fprintf(&b, "Note: %s\n", n)
	}
	return b.String()
}

func (c Case) print(b *strings.Builder, source string) {
	fmt.Fprintf(b, "%s to %s: %s\n", source, c.Destination, c.headline())
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	for _, row := range c.rows() {
		fmt.Fprintf(w, "  %s\t%s\n", row[0], row[1])
	}
	_ = w.Flush() // to memory
	c.printBackends(b)
	c.printLeftOut(b)
}

func (c Case) headline() string {
	words := map[Verdict]string{
		Balanced: "balanced " + c.Why, Refused: "refused at once", Dropped: "dropped without a word",
		Untouched: "not for Sluice, left as it is",
	}
	return words[c.Verdict]
}

// rows are what is said of a case, each with its title.
func (c Case) rows() [][2]string {
	var rows [][2]string
	if c.Verdict != Balanced {
		rows = append(rows, [2]string{"Why", c.Why})
	}
	if f := c.Front; f != nil {
		service := f.Service
		if f.Port != "" {
			service += ", port " + f.Port
		}
		rows = append(rows, [2]string{"Service", service}, [2]string{"Reached by", f.Kind + " " + f.Address})
	}
	rows = append(rows, [2]string{"Client", c.Client.text()})
	if c.Access != nil {
		rows = append(rows, [2]string{"Let in", c.Access.text()})
	}
	if c.Policy != nil {
		rows = append(rows, [2]string{"Policy", c.Policy.Why})
	}
	if c.SourceNAT != nil {
		rows = append(rows, [2]string{"Source NAT", c.SourceNAT.text()})
	}
	if len(c.Path) > 0 {
		rows = append(rows, [2]string{"Path", strings.Join(c.Path, " -> ")})
	}
	if c.AffinitySeconds > 0 {
		rows = append(rows, [2]string{"Affinity", fmt.Sprintf(
			"a client stays with its backend until it made no new connection for %s", period(c.AffinitySeconds))})
	}
	return rows
}

func (c Client) text() string {
	switch {
	case c.CountsAs == Node && c.Address != "":
		return "this node, as " + c.Address
	case c.CountsAs == Node:
		return "this node"
	case c.CountsAs == Pod:
		return "a pod: " + c.Why
	}
	return "from outside: " + c.Why
}

func (a Access) text() string {
	word := "no"
	if a.Allowed {
		word = "yes"
	}
	if len(a.Ranges) == 0 {
		return word + ": the source ranges are for nobody"
	}
	return word + ": the source ranges are " + strings.Join(a.Ranges, ", ")
}

func (n SourceNAT) text() string {
	if n.Applied {
		return "yes: " + n.Why
	}
	return "no: " + n.Why
}

// period writes a time-out as "3h" or "1m30s".
func period(seconds int) string {
	s := (time.Duration(seconds) * time.Second).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func (c Case) printBackends(b *strings.Builder) {
	if len(c.Backends) == 0 {
		return
	}
	b.WriteString("  Backends:\n")
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	for _, x := range c.Backends {
		var said []string
		if x.Hairpin {
			said = append(said, "the client itself: always with source NAT, or the answer would not pass this node")
		}
		if x.Terminating {
			said = append(said, "terminating")
		}
		cells := []string{x.Chance + " " + x.Address, x.Node, x.Slice}
		if len(x.Path) > 0 {
			cells = append(cells, "by "+strings.Join(x.Path, " -> "))
		}
		printRow(w, strings.Join(said, "; "), cells...)
	}
	_ = w.Flush() // to memory
}

// printLeftOut only counts those of the other family: half of all, for a Service
// of both.
func (c Case) printLeftOut(b *strings.Builder) {
	if len(c.LeftOut) == 0 {
		return
	}
	b.WriteString("  Left out:\n")
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	foreign := 0
	for _, x := range c.LeftOut {
		if x.Reason == route.WrongFamily.String() {
			foreign++
			continue
		}
		printRow(w, x.Reason, x.Address, x.Node, x.Slice)
	}
	_ = w.Flush() // to memory
	if foreign > 0 {
		fmt.Fprintf(b, "    %d %s\n", foreign, route.WrongFamily)
	}
}

// printRow writes the cells of a row, a dash for what is not known, and what
// else there is to say.
func printRow(w *tabwriter.Writer, said string, cells ...string) {
	for i := range cells {
		cells[i] = cmp.Or(cells[i], "-")
	}
	if said != "" {
		cells = append(cells, said)
	}
	fmt.Fprintln(w, "    "+strings.Join(cells, "\t"))
}
