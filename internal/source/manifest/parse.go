package manifest

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"

	"sigs.k8s.io/json"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/source/convert"
)

// key says which object it is.
type key struct {
	kind string
	name cluster.Name
}

// String returns what problems call the object.
func (k key) String() string { return convert.Object(k.kind, k.name) }

func (k key) compare(l key) int {
	return cmp.Or(strings.Compare(k.kind, l.kind), k.name.Compare(l.name))
}

// object is one object of a file.
type object struct {
	key      key
	value    any // nil: nothing to a proxy
	problems []route.Problem
}

// isKept says that what cannot be read now stays as it was.
const isKept = "what it last said is kept"

// content is what a file says.
type content struct {
	objects []*object // each key once

	failures []failure // what could not be read

	problems []route.Problem // of none of the objects

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
	return slices.ContainsFunc(c.failures, func(f failure) bool { return f.key == (key{}) || f.key == k })
}

// hash stands for the text of a document or a file.
type hash = [sha256.Size]byte

// over returns what the file says when last is what it said before: what is
// broken stays as it was, and its problem says so.
func (c content) over(last content) content {
	if len(c.failures) == 0 {
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

// all returns every problem of the file and of its objects.
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

// parse reads a file. It is pure; name is for messages.
func (r reader) parse(name string, data []byte) content {
	return r.parseAgain(name, data, content{})
}

// parseAgain reads a file that said last before. Documents that are as they
// were are not read again: the cost follows what changed.
func (r reader) parseAgain(name string, data []byte, last content) content {
	docs := split(data)
	parts, sums := make([]content, len(docs)), make([]hash, len(docs))
	workers := min(runtime.GOMAXPROCS(0), 1+len(docs)/64)
	var running sync.WaitGroup
	for w := range workers {
		running.Go(func() {
			for i := w; i < len(docs); i += workers {
				sums[i] = sha256.Sum256(docs[i].text)
				part, ok := last.documents[sums[i]]
				if !ok {
					part = r.document(name, docs[i])
				}
				parts[i] = part
			}
		})
	}
	running.Wait()
	out := join(parts, name+": ", "document")
	out.documents = make(map[hash]content, len(docs))
	for i, part := range parts {
		if len(docs) > 1 && part.sound() {
			out.documents[sums[i]] = part
		}
	}
	return out
}

// sound reports whether there is nothing to say about a document, which would
// have to name its place.
func (c content) sound() bool {
	return len(c.all()) == 0
}

// join makes one content of those of documents or items, in order; unit is
// what they are called, place is where they are. Of an object that is there
// twice the first counts.
func join(parts []content, place, unit string) content {
	var out content
	seen := map[key]int{}
	for i, p := range parts {
		out.failures = append(out.failures, p.failures...)
		out.problems = append(out.problems, p.problems...)
		for _, o := range p.objects {
			if first, twice := seen[o.key]; twice {
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

func (r reader) document(file string, d document) content {
	place := fmt.Sprintf("%s: document %d", file, d.number)
	text, odd, err := d.toJSON()
	if err != nil {
		return lost(route.Problem{Object: place, Reason: err.Error()})
	}
	out := r.object(text, header{})
	if odd != nil {
		out.problems = append(out.problems, d.oddities(text, odd)...)
	}
	out.locate(place)
	return out
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

// object reads one object, or all of a list. What it leaves out of its header
// it has from the list it is in.
func (r reader) object(text []byte, from header) content {
	h := header{APIVersion: from.APIVersion, Kind: from.Kind}
	err := json.UnmarshalCaseSensitivePreserveInts(text, &h)
	if h.Kind == "" || h.APIVersion == "" {
		return lost(notAnObject(h, text, err))
	}
	if kind, ok := strings.CutSuffix(h.Kind, "List"); ok {
		return r.list(h, kind, text)
	}
	t, ok := traitOf(h.Kind)
	group, version := h.groupVersion()
	if !ok || group != t.group {
		return content{problems: h.stranger(h.Kind)} // something else's
	}
	if !slices.Contains(t.versions, version) {
		return content{problems: []route.Problem{{
			Object: h.Kind + " " + h.Metadata.Name, Field: "apiVersion", Value: h.APIVersion,
			Reason: "this version is not read; expected " + t.apiVersion(),
		}}}
	}
	if err != nil {
		return lost(*unreadable(h.Kind, text, h, err))
	}
	k, problem := h.key(t)
	if problem != nil {
		return lost(*problem)
	}
	value, problems, problem := r.value(k, text)
	if problem != nil {
		return content{failures: []failure{{k, *problem}}}
	}
	return content{objects: []*object{{key: k, value: value, problems: problems}}}
}

// notAnObject says what something without apiVersion or kind lacks.
func notAnObject(h header, text []byte, err error) route.Problem {
	if err != nil {
		return *unreadable("", text, h, err)
	}
	p := route.Problem{Field: "kind", Value: h.Kind, Reason: "not a Kubernetes object: it needs an apiVersion and a kind"}
	if h.Kind != "" {
		p.Field, p.Value = "apiVersion", h.APIVersion
	}
	return p
}

// list reads the items of a list: of anything, or of one kind.
func (r reader) list(h header, kind string, text []byte) content {
	var from header
	if kind != "" {
		if _, ok := traitOf(kind); !ok {
			return content{problems: h.stranger(kind)}
		}
		from = header{APIVersion: h.APIVersion, Kind: kind}
	}
	var l items
	if err := json.UnmarshalCaseSensitivePreserveInts(text, &l); err != nil {
		return lost(*unreadable(h.Kind, text, l, err))
	}
	parts := make([]content, len(l.Items))
	for i, item := range l.Items {
		parts[i] = r.object(item, from)
		parts[i].locate(fmt.Sprintf("item %d", i+1))
	}
	return join(parts, "", "item") // its document has a place
}
