package inspect

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/text"
)

// Timeouts of answers. A diff also reads the kernel.
const (
	answerTime = 10 * time.Second
	diffTime   = 2 * time.Minute
)

// Handler answers queries with lines of JSON, each of them one answer:
//
//	/services /backends /nodeports   Service, Backend, NodePort; ?namespace= ?name= ?selector= filter; ?brief=
//	                                 leaves out what only a query by name has (Filter.Brief), ?counts= adds
//	                                 connections (Filter.Counts)
//	/addresses /hosts                Address, Host; filtered, too
//	/traffic /traffic/backends       Traffic; filtered, too
//	/clients                         Client; filtered by the Service to which it has the most connections
//	/conntrack                       Conntrack, one
//	/names                           "NAMESPACE/NAME", of ?namespace=, with ?name= as prefix
//	/namespaces                      names of namespaces with ?name= as prefix
//	/status                          Status, one
//	/diff                            Step, to the rules that the kernel should have
//	/plan                            Step, from a kernel without rules
//	/events                          Event; with ?after=NUMBER it waits for one with a greater number
//	/drain                           Drain of the pod ?pod= after at most ?wait=, one
//	/draining                        Draining, of all waits that run
//	/settings                        Settings, one
//	/explain                         explain.Answer to ?source= ?destination= ?via=, one
//
// An error is answered with its message in plain text, with status 404 if nothing has the name.
func (i *Inspector) Handler() http.Handler {
	mux := http.NewServeMux()
	for path, h := range map[string]http.HandlerFunc{
		"/services": filtered(i, i.Services), "/backends": filtered(i, i.Backends), "/nodeports": filtered(i, i.NodePorts),
		"/addresses": filtered(i, i.Addresses), "/hosts": filtered(i, i.hosts), "/traffic": filtered(i, i.Traffic),
		"/traffic/backends": filtered(i, i.BackendTraffic), "/clients": filtered(i, i.Clients),
		"/conntrack": single(func(r *http.Request) (Conntrack, error) { return i.Conntrack(r.Context()) }),
		"/names":     lines(i.names), "/namespaces": lines(i.namespaces), "/explain": single(i.explain),
	} {
		mux.Handle("GET "+path, i.queries.serve(h, answerTime, errQueries))
	}
	for path, plan := range map[string]func(context.Context) (plane.Plan, error){
		"/diff": i.diff, "/plan": i.plan,
	} {
		mux.Handle("GET "+path, i.diffs.serve(lines(steps(plan)), diffTime, errDiffs))
	}
	mux.Handle("GET /status", single(func(r *http.Request) (Status, error) { return i.Status(r.Context()), nil }))
	mux.Handle("GET /events", lines(i.events))
	mux.Handle("GET /drain", patient(single(i.drain)))
	mux.Handle("GET /draining", lines(i.draining))
	mux.Handle("GET /settings", single(func(*http.Request) (Settings, error) { return i.opt.Settings, nil }))
	return mux
}

// watchTime bounds the wait for an Event.
const watchTime = 20 * time.Second

func (i *Inspector) events(r *http.Request) (iter.Seq[Event], error) {
	if !r.URL.Query().Has("after") {
		return slices.Values(i.Events()), nil
	}
	after, err := strconv.ParseUint(r.FormValue("after"), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("after %q: want the number of an Event", r.FormValue("after"))
	}
	ctx, cancel := context.WithTimeout(r.Context(), watchTime)
	defer cancel()
	return slices.Values(i.opt.History.eventsWithin(ctx, after)), nil
}

// Events returns the latest Events, the oldest first.
func (i *Inspector) Events() []Event {
	events, _ := i.opt.History.Events(0)
	return events
}

// single answers with one value.
func single[T any](ask func(*http.Request) (T, error)) http.HandlerFunc {
	return lines(func(r *http.Request) (iter.Seq[T], error) {
		v, err := ask(r)
		return slices.Values([]T{v}), err
	})
}

// bufferBytes is how much of an answer is encoded before it is written.
const bufferBytes = 64 << 10

// lines answers with a line for each value. It encodes one at a time, as a list may be larger than the memory limit of
// the process.
func lines[T any](ask func(*http.Request) (iter.Seq[T], error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		values, err := ask(r)
		if err != nil {
			code := http.StatusServiceUnavailable
			if _, is := errors.AsType[notFoundError](err); is {
				code = http.StatusNotFound
			}
			http.Error(w, strings.TrimSpace(err.Error()), code)
			return
		}
		out := bufio.NewWriterSize(w, bufferBytes)
		enc := json.NewEncoder(out)
		enc.SetEscapeHTML(false)
		for v := range values {
			if enc.Encode(v) != nil {
				panic(http.ErrAbortHandler) // the client has gone; if not, it must not take this for the whole answer
			}
		}
		_ = out.Flush() // the same
	}
}

// owned is an item of a list that belongs to a Service.
type owned interface{ owner() cluster.Name }

func (s Service) owner() cluster.Name { return cluster.Name{Namespace: s.Namespace, Name: s.Name} }

func (p ServicePort) owner() cluster.Name {
	return cluster.Name{Namespace: p.Namespace, Name: p.Service}
}

func (n NodePort) owner() cluster.Name { return cluster.Name{Namespace: n.Namespace, Name: n.Service} }

func (a Address) owner() cluster.Name { return cluster.Name{Namespace: a.Namespace, Name: a.Service} }

func (c Client) owner() cluster.Name { return cluster.Name{Namespace: c.Namespace, Name: c.Service} }

func (h Host) owner() cluster.Name { return cluster.Name{Namespace: h.Namespace, Name: h.Service} }

func filtered[T owned](i *Inspector, list func(context.Context, Filter) (iter.Seq[T], error)) http.HandlerFunc {
	return lines(func(r *http.Request) (iter.Seq[T], error) {
		f, err := ParseFilter(r.FormValue("name"), r.FormValue("namespace"))
		if err != nil {
			return nil, err
		}
		f.Brief, f.Counts = r.FormValue("brief") != "", r.FormValue("counts") != ""
		all, err := list(r.Context(), f)
		selector := r.FormValue("selector")
		if err != nil || selector == "" {
			return all, err
		}
		selects, err := i.opt.Selector(selector)
		return func(yield func(T) bool) {
			for v := range all {
				if selects(i.opt.Store.Labels(v.owner())) && !yield(v) {
					return
				}
			}
		}, err
	})
}

// Step is one step of a plan, in the language of the mechanism.
type Step struct {
	Step string `json:"step"`
}

// Print writes the step as a line.
func (s Step) Print(out *text.Columns) { out.Printf("%s\n", s.Step) }

func steps(plan func(context.Context) (plane.Plan, error)) func(*http.Request) (iter.Seq[Step], error) {
	return func(r *http.Request) (iter.Seq[Step], error) {
		p, err := plan(r.Context())
		if err != nil || p.Steps() == 0 {
			return slices.Values[[]Step](nil), err
		}
		all := p.String() // the plan is not kept while a client reads
		return func(yield func(Step) bool) {
			for line := range strings.Lines(all) {
				if !yield(Step{strings.TrimSuffix(line, "\n")}) {
					return
				}
			}
		}, nil
	}
}

// serial runs one handler at a time, each on a thread of its own. A query about very many Services computes for a
// second or more. On a shared thread, the kernel's scheduler would give other goroutines of that thread less CPU time
// afterwards, and the next change of a Service would be delayed on a busy machine.
type serial chan struct{}

// Errors of queries that have waited for others until their time-out.
var (
	errQueries = errors.New("the daemon is still answering other queries; try again")
	errDiffs   = errors.New("another comparison is still running; try again")
)

// lock waits until no other handler runs; false: the context ended before.
func (s serial) lock(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case s <- struct{}{}:
		runtime.LockOSThread()
		return true
	}
}

func (s serial) unlock() {
	runtime.UnlockOSThread()
	<-s
}

// serve returns h with a timeout. The wait for other handlers has the same one.
func (s serial) serve(h http.Handler, timeout time.Duration, tooLate error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		waiting, stop := context.WithTimeout(r.Context(), timeout)
		defer stop()
		if !s.lock(waiting) {
			http.Error(w, tooLate.Error(), http.StatusServiceUnavailable)
			return
		}
		defer s.unlock()
		ctx, cancel := context.WithTimeout(r.Context(), timeout)
		defer cancel()
		h.ServeHTTP(serialWriter{w, s}, r.WithContext(ctx))
	})
}

// Alone calls do, which may query, while no query of Handler runs. It returns an error if others run until the context
// ends.
func (i *Inspector) Alone(ctx context.Context, do func()) error {
	if !i.queries.lock(ctx) {
		return errQueries
	}
	defer i.queries.unlock()
	do()
	return nil
}

// serialWriter lets other handlers run during a write, which a slow client may block.
type serialWriter struct {
	http.ResponseWriter

	serial serial
}

func (w serialWriter) Write(p []byte) (int, error) {
	w.serial.unlock()
	defer w.serial.lock(context.Background())
	return w.ResponseWriter.Write(p)
}
