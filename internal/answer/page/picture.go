package page

import (
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/sluice-proxy/sluice/internal/answer/explain"
	"github.com/sluice-proxy/sluice/internal/text"
)

// Measures of a picture, in the units of its viewBox.
const (
	width     = 360
	boxHeight = 50
	gap       = 40 // between client, frontend and backends
	step      = 60 // from one backend to the next
	trunk     = 22 // where the lines to the backends begin
	branch    = 96 // where they end
	margin    = 12 // of text in a box
	glyph     = 8  // the widest a character of an address is
)

// maxDrawn is how many backends a picture has.
const maxDrawn = 6

// drawing is a picture under way.
type drawing struct {
	nodes nodes
	y     int
}

// picture shows the way of a connection: client, frontend, and backends with their chances.
func picture(source string, c explain.Case) node {
	var p drawing
	client := source
	if c.Client.Address != "" && c.Client.Address != source {
		client += ", as " + c.Client.Address
	}
	p.box(0, "client", "Client: "+string(c.Client.CountsAs), client)
	p.down("way", p.y+gap)
	p.text(trunk+margin, p.y+gap/2+5, "note", "to "+c.Destination)
	p.y += gap
	if f := c.Frontend; f != nil {
		name := f.Service
		if f.Port != "" {
			name += ":" + f.Port
		}
		p.box(0, "frontend", f.Kind+" "+f.Address, name)
	} else {
		p.box(0, "frontend", "No Service", c.Destination)
	}
	if c.Verdict == explain.Balanced {
		p.backends(c)
	} else {
		p.end(c.Verdict)
	}
	parts := []part{
		attr{"viewBox", fmt.Sprintf("-1 -1 %d %d", width+2, p.y+2)},
		attr{"role", "img"},
		attr{"width", strconv.Itoa(width)},
		attr{"aria-label", c.Headline(source)},
		el("title", words(c.Headline(source))), p.nodes,
	}
	return el("svg", parts...)
}

// backends draws the backends below the frontend, each with its chance.
func (p *drawing) backends(c explain.Case) {
	note, from := "the source address is kept", p.y
	if c.SourceNAT != nil && c.SourceNAT.Applied {
		note = "masqueraded: backends see an address of this node"
	}
	p.text(trunk+margin, p.y+gap/2+5, "note", note)
	p.y += gap
	drawn := c.Backends[:min(len(c.Backends), maxDrawn)]
	for _, b := range drawn {
		middle := p.y + boxHeight/2
		p.path("way", "M%d %dV%dH%dm-7-5l6 5l-6 5", trunk, from, middle, branch-1)
		p.text(trunk+margin, middle-7, "chance", b.Chance)
		class, about := "backend", "Backend"
		if b.Node != "" {
			about += " on " + b.Node
		}
		if b.Hairpin {
			class, about = "backend special", "The client itself, masqueraded"
		}
		if b.Terminating {
			class, about = "backend special", about+", terminating"
		}
		p.box(branch, class, about, b.Address)
		from, p.y = middle, p.y+step-boxHeight
	}
	if n := len(c.Backends) - len(drawn); n > 0 {
		p.text(branch+margin, p.y+10, "note", "and "+text.Count(n, "more backend"))
		p.y += 20
	}
}

// end draws the end of a connection without a backend.
func (p *drawing) end(v explain.Verdict) {
	what := map[explain.Verdict][2]string{
		explain.Refused:   {"the client fails at once", "Refused"},
		explain.Dropped:   {"the client waits until its time-out", "Dropped"},
		explain.Untouched: {"as if there were no proxy", "Not changed by Sluice"},
	}[v]
	p.down("way "+string(v), p.y+gap)
	p.y += gap
	p.box(0, string(v), what[0], what[1])
}

// box draws a box from x to the right edge, with a small line above a large one, and moves below it.
func (p *drawing) box(x int, style, small, large string) {
	p.nodes = append(p.nodes, el("rect", class(style), attr{"x", strconv.Itoa(x)}, attr{"y", strconv.Itoa(p.y)},
		attr{"width", strconv.Itoa(width - x)}, attr{"height", strconv.Itoa(boxHeight)}, attr{"rx", "8"}))
	p.text(x+margin, p.y+19, "small", small)
	p.text(x+margin, p.y+39, "large", large)
	p.y += boxHeight
}

// down draws an arrow from the box above down to y.
func (p *drawing) down(style string, y int) { p.path(style, "M%d %dV%dm-5-7l5 6l5-6", trunk, p.y, y-1) }

// path draws lines in the language of SVG.
func (p *drawing) path(style, format string, at ...any) {
	p.nodes = append(p.nodes, el("path", class(style), attr{"d", fmt.Sprintf(format, at...)}))
}

// text writes text from x on. One that is too long is narrowed, and cut if it would be too narrow to read.
func (p *drawing) text(x, y int, style, what string) {
	room := width - margin - x
	if runes := []rune(what); len(runes)*glyph > 2*room {
		what = string(runes[:2*room/glyph-1]) + "…"
	}
	n := el("text", class(style), attr{"x", strconv.Itoa(x)}, attr{"y", strconv.Itoa(y)}, words(what))
	if utf8.RuneCountInString(what)*glyph > room {
		attr{"textLength", strconv.Itoa(room)}.addTo(n.Node)
		attr{"lengthAdjust", "spacingAndGlyphs"}.addTo(n.Node)
	}
	p.nodes = append(p.nodes, n)
}
