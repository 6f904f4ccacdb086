package manifest

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/route"
)

// isKept says that what cannot be read now stays as it was.
const isKept = "what it last said is kept"

// content is what a file says.
type content struct {
	objects []*object // each key once

	failures []failure // what could not be read

	problems []route.Problem // of none of the objects

	missed int // failures that are only counted
	more   int // problems that are only counted

	// documents are those that can be taken as they are when they come again.
	documents map[hash]content
}

// failure is something in a file that could not be read.
type failure struct {
	key     key // the object that is known to be there; zero: not even that is known
	problem route.Problem
}

// lost returns the content of text of which nothing is known.
func lost(p route.Problem) content { return content{failures: []failure{{problem: p}}} }

// misses reports whether an object that is not there may be in what could not
// be read.
func (c content) misses(k key) bool {
	return c.missed > 0 || slices.ContainsFunc(c.failures, func(f failure) bool { return f.key == (key{}) || f.key == k })
}

// hash stands for the text of a document or a file.
type hash = [sha256.Size]byte

// over returns what the file says when last is what it said before: what is
// broken stays as it was, and its problem says so.
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

// isBroken reports whether there is something that could not be read.
func (c content) isBroken() bool { return len(c.failures)+c.missed > 0 }

// drops reports whether an object of last is no longer there.
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

// sound reports whether there is nothing to say about a document, which would
// have to name its place.
func (c content) sound() bool {
	return c.problemCount() == 0
}

// join makes one content of those of documents or items, in order; unit is
// what they are called, place is where they are. Of an object that is there
// twice the first counts.
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

// locateAt locates the content of a document. What cannot be read it locates by
// line as well.
func (c content) locateAt(place string, line int) {
	for i := range c.failures {
		p := &c.failures[i].problem
		if !strings.Contains(p.Reason, "line ") {
			p.Object = strings.TrimSuffix(fmt.Sprintf("line %d: %s", line, p.Object), ": ")
		}
	}
	c.locate(place)
}

// locate puts a place before the names of objects in problems.
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
