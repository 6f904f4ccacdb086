package manifest

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
)

// isKept is the part of messages that says that the last content stays in force.
const isKept = "its last content stays in force"

const (
	// mostFailures is how many failures of a file are kept one by one.
	mostFailures = 1000

	// mostProblems is how many problems of a file, or of an object, are reported
	// one by one.
	mostProblems = 10
)

// hash identifies the text of a document or a file.
type hash = [sha256.Size]byte

// object is one object of a file.
type object struct {
	key      key
	value    any // nil: without meaning to a proxy
	problems []route.Problem
}

// content has the objects and problems of a file, or of a part of it.
type content struct {
	objects  []*object       // each key once
	failures []failure       // parts that could not be read
	problems []route.Problem // of none of the objects

	moreFailures int // that are only counted
	moreProblems int // that are only counted

	// documents are kept for reuse if they are unchanged when the file is read again.
	documents map[hash]content
}

// failure is a part of a file that could not be read.
type failure struct {
	key     key // of the object; zero: unknown
	problem route.Problem
}

// unread returns the content of text that could not be read at all.
func unread(p route.Problem) content { return content{failures: []failure{{problem: p}}} }

// withRepeated adds the problems of repeated keys of an object.
func (c content) withRepeated(object string, problems []route.Problem) content {
	for _, p := range problems {
		p.Object = object
		c.problems = append(c.problems, p)
	}
	return c
}

// name returns the name of the only object; empty if there is none, or several.
func (c content) name() string {
	if len(c.objects) != 1 {
		return ""
	}
	return c.objects[0].key.String()
}

// keys returns the keys of the objects.
func (c content) keys() map[key]struct{} {
	keys := make(map[key]struct{}, len(c.objects))
	for _, o := range c.objects {
		keys[o.key] = struct{}{}
	}
	return keys
}

// misses reports whether an object that is absent may be in a part that could not
// be read.
func (c content) misses(k key) bool {
	return c.moreFailures > 0 || slices.ContainsFunc(c.failures, func(f failure) bool { return f.key == (key{}) || f.key == k })
}

// over returns the content to use after last: objects in parts that could not be
// read stay as they were in last, and the problems say so.
func (c content) over(last content) content {
	if !c.isBroken() {
		return c
	}
	present := c.keys()
	kept := map[key]struct{}{}
	for _, o := range last.objects {
		if _, ok := present[o.key]; !ok && c.misses(o.key) {
			c.objects = append(c.objects, o)
			kept[o.key] = struct{}{}
		}
	}
	c.failures = slices.Clone(c.failures)
	for i := range c.failures {
		f := &c.failures[i]
		if _, keeps := kept[f.key]; keeps || f.key == (key{}) && len(kept) > 0 {
			f.problem.Reason += "; " + isKept
		}
	}
	return c
}

// isBroken reports whether a part could not be read.
func (c content) isBroken() bool { return len(c.failures)+c.moreFailures > 0 }

// drops reports whether an object of last is missing.
func (c content) drops(last content) bool {
	present := c.keys()
	return slices.ContainsFunc(last.objects, func(o *object) bool {
		_, ok := present[o.key]
		return !ok
	})
}

// join joins the contents of documents or items, in order. Messages name them by
// unit and place. Of two objects with the same key the first counts.
func join(parts []content, place, unit string) content {
	var out content
	seen := map[key]int{}
	for i, p := range parts {
		out.failures = append(out.failures, p.failures...)
		out.moreFailures, out.moreProblems = out.moreFailures+p.moreFailures, out.moreProblems+p.moreProblems
		out.problems = append(out.problems, p.problems...)
		for _, o := range p.objects {
			first, twice := seen[o.key]
			switch {
			case !twice:
				seen[o.key] = i
				out.objects = append(out.objects, o)
			case len(out.problems) >= mostFailures:
				out.moreProblems++
			default:
				out.problems = append(out.problems, route.Problem{
					Object: fmt.Sprintf("%s%s %d: %v", place, unit, i+1, o.key),
					Reason: fmt.Sprintf("also in %s %d, which takes precedence", unit, first+1),
				})
			}
		}
	}
	return out
}

// joinItems joins the contents of the items of a list.
func joinItems(parts []content) content {
	for i, part := range parts {
		part.locate(fmt.Sprintf("item %d", i+1), 0)
	}
	return join(parts, "", "item")
}

// locate prepends a place to the names of objects in problems, and to failures the
// line, unless it is 0 or the failure names one.
func (c content) locate(place string, line int) {
	put := func(p *route.Problem, place string) { p.Object = strings.TrimSuffix(place+": "+p.Object, ": ") }
	for i := range c.problems {
		put(&c.problems[i], place)
	}
	for i := range c.failures {
		p := &c.failures[i].problem
		if line > 0 && !strings.Contains(p.Reason, "line ") {
			put(p, fmt.Sprintf("line %d", line))
		}
		put(p, place)
	}
	for _, o := range c.objects {
		for i := range o.problems {
			put(&o.problems[i], place)
		}
	}
}

// all returns every problem of the file and of its objects that is not only
// counted.
func (c content) all() []route.Problem {
	out := slices.Clone(c.problems)
	for _, f := range c.failures {
		out = append(out, f.problem)
	}
	for _, o := range c.objects {
		out = append(out, o.problems...)
	}
	return out
}

// problemCount returns how many problems there are, including those that are only
// counted.
func (c content) problemCount() int {
	n := len(c.problems) + len(c.failures) + c.moreFailures + c.moreProblems
	for _, o := range c.objects {
		n += len(o.problems)
	}
	return n
}

// report returns the problems of a file to report: the first ones, and the number of
// the others.
func (c content) report(path string) []route.Problem { return summary(path, c.all(), c.problemCount()) }

// summary returns the first of the problems of an object or a file, and how many
// more there are of count altogether.
func summary(object string, problems []route.Problem, count int) []route.Problem {
	first := problems[:min(len(problems), mostProblems)]
	if count == len(first) {
		return problems
	}
	return append(slices.Clip(first), route.Problem{
		Object: object, Reason: "and " + text.Count(count-len(first), "more problem"),
	})
}
