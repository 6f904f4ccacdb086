package manifest

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

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

// reader turns the text of files into values. It is pure.
type reader struct {
	convert  convert.Converter
	nodeName string
	limits   Limits      // zero: DaemonLimits
	stopped  func() bool // may be nil
	heavy    *sync.Mutex // held while a large document is parsed; may be nil

	tally *tally // of the file that is being parsed
}

// tally counts the objects and failures of a file while it is parsed.
type tally struct {
	objects, failures atomic.Int64
}

// parse parses a file; name is for messages.
func (r reader) parse(name string, data []byte) content {
	return r.parseAgain(name, data, content{})
}

// parseAgain parses a file whose content was last. It reuses unchanged documents, so
// that the cost follows the change.
func (r reader) parseAgain(name string, data []byte, last content) content {
	fail := func(err error) content { return unread(route.Problem{Object: name, Reason: err.Error()}) }
	if r.limits == (Limits{}) {
		r.limits = DaemonLimits()
	}
	text, invalid, err := toUTF8(data)
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
	if invalid != nil {
		out.problems = append(out.problems, route.Problem{Object: name, Reason: invalid.Error()})
	}
	out.documents = make(map[hash]content, len(docs))
	for i, part := range parts {
		if len(docs) > 1 && part.problemCount() == 0 { // a problem names its position, which may change
			out.documents[sums[i]] = part
		}
	}
	return out
}

// documents parses documents in parallel, and returns the content and hash of each.
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
					part = r.document(docs[i])
					part.locate(fmt.Sprintf("%s: document %d", name, docs[i].number), docs[i].line)
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
	if r.tally.failures.Add(1) > mostFailures {
		return content{moreFailures: 1}
	}
	return content{failures: []failure{{k, p}}}
}

func (r reader) document(d document) content {
	if len(d.text) > largeBytes && r.heavy != nil {
		r.heavy.Lock()
		defer r.heavy.Unlock()
	}
	if !d.isJSON && d.checkSize(r.limits.DocumentBytes) != nil {
		if l, ok := d.cutList(); ok {
			return r.pieces(l)
		}
	}
	text, repeated, err := d.toJSON(r.limits.DocumentBytes)
	if err != nil {
		return r.failed(key{}, route.Problem{Reason: err.Error()})
	}
	if string(text) == "null" {
		return content{} // an empty document
	}
	out := r.object(text, header{})
	return out.withRepeated(out.name(), repeated)
}
