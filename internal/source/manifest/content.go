package manifest

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/route"
)

// isKept is the part of messages that says that the last content stays in force.
const isKept = "what it last said is kept"

// content are the objects and problems of a file.
type content struct {
	objects []*object // each key once

	failures []failure // parts that could not be read

	problems []route.Problem // of none of the objects

	missed int // failures that are only counted
	more   int // problems that are only counted

	// documents are kept for reuse if they are unchanged when the file is read again.
	documents map[hash]content
}

// failure is a part of a file that could not be read.
type failure struct {
	key     key // of the object; zero: unknown
	problem route.Problem
}

// lost returns the content of text that could not be read at all.
func lost(p route.Problem) content { return content{failures: []failure{{problem: p}}} }

// misses reports whether an object that is absent may be in a part that could not
// be read.
func (c content) misses(k key) bool {
	return c.missed > 0 || slices.ContainsFunc(c.failures, func(f failure) bool { return f.key == (key{}) || f.key == k })
}

// hash identifies the text of a document or a file.
type hash = [sha256.Size]byte

// over returns the content to use after last: objects in parts that could not be
// read stay as they were in last, and the problems say so.
func (c content) over(last content) content {
	if !c.isBroken() {
		return c
	}
	now := map[key]struct{}{}
	for i := range c.objects {
		now[c.objects[i].key] = struct{}{}
	}
	kept := map[key]struct{}{}
	for _, o := range last.objects {
		if _, said := now[o.key]; !said && c.misses(o.key) {
			c.objects = append(c.objects, o)
			kept[o.key] = struct{}{}
		}
	}
	c.failures = slices.Clone(c.failures)
	for i := range c.failures {
		f := &c.failures[i]
		_, keeps := kept[f.key]
		if keeps || f.key == (key{}) && len(kept) > 0 {
			f.problem.Reason += "; " + isKept
		}
	}
	return c
}

// isBroken reports whether a part could not be read.
func (c content) isBroken() bool { return len(c.failures)+c.missed > 0 }

// drops reports whether an object of last is missing.
func (c content) drops(last content) bool {
	now := make(map[key]struct{}, len(c.objects))
	for i := range c.objects {
		now[c.objects[i].key] = struct{}{}
	}
	return slices.ContainsFunc(last.objects, func(o *object) bool {
		_, ok := now[o.key]
		return !ok
	})
}

// all returns every problem of the file and of its objects that is not only
// counted.
func (c content) all() []route.Problem {
	out := slices.Clone(c.problems)
	for _, f := range c.failures {
		out = append(out, f.problem)
	}
	for i := range c.objects {
		out = append(out, c.objects[i].problems...)
	}
	return out
}

// sound reports whether a document has no problem, which would have to name its
// position.
func (c content) sound() bool {
	return c.problemCount() == 0
}

// join joins the contents of documents or items, in order. Messages name them by
// unit and place. Of two objects with the same key the first counts.
func join(parts []content, place, unit string) content {
	var out content
	seen := map[key]int{}
	for i, p := range parts {
		out.failures = append(out.failures, p.failures...)
		out.missed, out.more = out.missed+p.missed, out.more+p.more
		out.problems = append(out.problems, p.problems...)
		for _, o := range p.objects {
			first, twice := seen[o.key]
			if twice && len(out.problems) >= mostFailures {
				out.more++
				continue
			}
			if twice {
				out.problems = append(out.problems, route.Problem{
					Object: fmt.Sprintf("%s%s %d: %v", place, unit, i+1, o.key),
					Reason: fmt.Sprintf("also in %s %d, which counts", unit, first+1),
				})
				continue
			}
			seen[o.key] = i
			out.objects = append(out.objects, o)
		}
	}
	return out
}

// locateAt prepends the number of a document to its problems, and the line to its
// failures.
func (c content) locateAt(place string, line int) {
	for i := range c.failures {
		p := &c.failures[i].problem
		if !strings.Contains(p.Reason, "line ") {
			p.Object = strings.TrimSuffix(fmt.Sprintf("line %d: %s", line, p.Object), ": ")
		}
	}
	c.locate(place)
}

// locate prepends a place to the names of objects in problems.
func (c content) locate(place string) {
	put := func(p *route.Problem) { p.Object = strings.TrimSuffix(place+": "+p.Object, ": ") }
	for i := range c.problems {
		put(&c.problems[i])
	}
	for i := range c.failures {
		put(&c.failures[i].problem)
	}
	for _, o := range c.objects {
		for i := range o.problems {
			put(&o.problems[i])
		}
	}
}
