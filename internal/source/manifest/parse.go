package manifest

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	stdjson "encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"sigs.k8s.io/json"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/source/convert"
)

// key identifies an object.
type key struct {
	kind string
	name cluster.Name
}

// String returns the name of the object in problems.
func (k key) String() string { return convert.Object(k.kind, k.name) }

func (k key) compare(l key) int {
	return cmp.Or(strings.Compare(k.kind, l.kind), k.name.Compare(l.name))
}

// object is one object of a file.
type object struct {
	key      key
	value    any // nil: without meaning to a proxy
	problems []route.Problem
}

// parse reads a file. It is pure; name is for messages.
func (r reader) parse(name string, data []byte) content {
	return r.parseAgain(name, data, content{})
}

// parseAgain reads a file whose content was last. It reuses unchanged documents, so
// that the cost follows the change.
func (r reader) parseAgain(name string, data []byte, last content) content {
	fail := func(err error) content { return lost(route.Problem{Object: name, Reason: err.Error()}) }
	if r.limits == (Limits{}) {
		r.limits = DaemonLimits()
	}
	text, odd, err := toUTF8(data)
	if err != nil {
		return fail(err)
	}
	docs, total := split(text, r.limits.Documents)
	if total > r.limits.Documents {
		return fail(tooMany(total, "document", r.limits.Documents))
	}
	r.tally = new(tally)
	parts, sums := r.documents(name, docs, last)
	if n := int(r.tally.objects.Load()); n > r.limits.Objects {
		return fail(tooMany(n, "object", r.limits.Objects))
	}
	out := join(parts, name+": ", "document")
	if odd != nil {
		out.problems = append(out.problems, route.Problem{Object: name, Reason: odd.Error()})
	}
	out.documents = make(map[hash]content, len(docs))
	for i, part := range parts {
		if len(docs) > 1 && part.sound() {
			out.documents[sums[i]] = part
		}
	}
	return out
}

// tally counts the documents and objects of a file while it is read.
type tally struct {
	objects, failures atomic.Int64
}

// documents reads documents in parallel, and returns the content of each.
func (r reader) documents(name string, docs []document, last content) ([]content, []hash) {
	parts, sums := make([]content, len(docs)), make([]hash, len(docs))
	workers := min(runtime.GOMAXPROCS(0), 1+len(docs)/64)
	var running sync.WaitGroup
	for w := range workers {
		running.Go(func() {
			for i := w; i < len(docs) && !r.isStopped(); i += workers {
				sums[i] = sha256.Sum256(docs[i].text)
				part, ok := last.documents[sums[i]]
				if ok {
					r.tally.objects.Add(int64(len(part.objects)))
				} else {
					part = r.document(name, docs[i])
				}
				parts[i] = part
			}
		})
	}
	running.Wait()
	return parts, sums
}

// isStopped reports whether the result is not needed any more.
func (r reader) isStopped() bool { return r.stopped != nil && r.stopped() }

// failed returns the content of an object that cannot be read. The key is zero if it
// is unknown.
func (r reader) failed(k key, p route.Problem) content {
	if r.tally != nil && r.tally.failures.Add(1) > mostFailures {
		return content{missed: 1}
	}
	return content{failures: []failure{{k, p}}}
}

func (r reader) document(file string, d document) content {
	place := fmt.Sprintf("%s: document %d", file, d.number)
	if len(d.text) > largeBytes && r.heavy != nil {
		r.heavy.Lock()
		defer r.heavy.Unlock()
	}
	if d.checkSize(r.limits.DocumentBytes) != nil && !d.isJSON {
		if l, ok := d.cutList(); ok {
			return r.readList(place, l)
		}
	}
	text, repeats, odd, err := d.toJSON(r.limits.DocumentBytes)
	if err != nil {
		out := r.failed(key{}, route.Problem{Reason: err.Error()})
		out.locateAt(place, d.line)
		return out
	}
	if string(text) == "null" {
		return content{} // an empty document
	}
	out := r.object(text, header{})
	out.problems = append(out.problems, d.oddities(text, repeats, odd)...)
	out.locateAt(place, d.line)
	return out
}

// object reads one object, or all objects of a list. An item without apiVersion or
// kind has those of its list.
func (r reader) object(text []byte, from header) content {
	h := header{APIVersion: from.APIVersion, Kind: from.Kind, depth: from.depth}
	err := json.UnmarshalCaseSensitivePreserveInts(text, &h)
	if h.Kind == "" || h.APIVersion == "" {
		return r.failed(key{}, notAnObject(h, text, err))
	}
	if strings.HasSuffix(h.Kind, "List") {
		return r.list(h, text)
	}
	t, ok := traitOf(h.Kind)
	group, version := h.groupVersion()
	if !ok || group != t.group {
		return content{problems: h.unknownKind(h.Kind)} // something else's
	}
	if !slices.Contains(t.versions, version) {
		return content{problems: []route.Problem{{
			Object: h.Kind + " " + h.Metadata.Name, Field: "apiVersion", Value: h.APIVersion,
			Reason: "this version is not read; expected " + t.apiVersion(),
		}}}
	}
	if err != nil {
		return r.failed(key{}, *unreadable(h.Kind, text, h, err))
	}
	k, problem := h.key(t)
	if problem != nil {
		return r.failed(key{}, *problem)
	}
	if err := checkSize("the object", text, r.limits.DocumentBytes); err != nil {
		return r.failed(k, route.Problem{Object: k.String(), Reason: err.Error()})
	}
	if r.tally.objects.Add(1) > int64(r.limits.Objects) {
		return content{} // the whole file is refused
	}
	value, problems, problem := r.value(k, text)
	if problem != nil {
		return r.failed(k, *problem)
	}
	problems = summary(k.String(), problems, len(problems))
	return content{objects: []*object{{key: k, value: value, problems: problems}}}
}

// notAnObject is the error of a document without apiVersion or kind.
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

// itemHeader returns the apiVersion and kind of the items of a list; false if the
// list is not read, with the problem if there is one.
func (h header) itemHeader() (header, []route.Problem, bool) {
	from := header{depth: h.depth + 1}
	kind, _ := strings.CutSuffix(h.Kind, "List")
	if kind == "" {
		return from, nil, true
	}
	if _, ok := traitOf(kind); !ok {
		return from, h.unknownKind(kind), false
	}
	from.APIVersion, from.Kind = h.APIVersion, kind
	return from, nil, true
}

// list reads the items of a list: of anything, or of one kind.
func (r reader) list(h header, text []byte) content {
	from, other, ok := h.itemHeader()
	if !ok {
		return content{problems: other}
	}
	if from.depth > maxListDepth {
		return r.failed(key{}, route.Problem{Object: h.Kind, Reason: fmt.Sprintf("lists are nested more than %d levels deep, which is the limit", maxListDepth)})
	}
	var l items
	if err := json.UnmarshalCaseSensitivePreserveInts(text, &l); err != nil {
		return r.failed(key{}, *unreadable(h.Kind, text, struct {
			Items []stdjson.RawMessage `json:"items"`
		}{}, err))
	}
	return r.items(h, from, l.Items)
}

// items reads the items of a list one by one.
func (r reader) items(h, from header, text []byte) content {
	var parts []content
	dec := stdjson.NewDecoder(bytes.NewReader(text))
	if _, err := dec.Token(); err != nil {
		return content{} // there are none
	}
	for dec.More() && !r.isStopped() {
		var item stdjson.RawMessage
		if err := dec.Decode(&item); err != nil {
			return r.failed(key{}, route.Problem{Object: h.Kind, Field: "items", Reason: err.Error()})
		}
		if len(parts) == r.limits.Documents {
			return lost(route.Problem{Object: h.Kind, Field: "items", Reason: fmt.Sprintf("there are more than %d items, which is the limit", r.limits.Documents)})
		}
		part := r.object(item, from)
		part.locate(fmt.Sprintf("item %d", len(parts)+1))
		parts = append(parts, part)
	}
	return join(parts, "", "item") // its document has a place
}
