package inspect

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/answer/explain"
)

// Timeouts of answers. A diff also reads the kernel.
const (
	answerTime = 10 * time.Second
	diffTime   = 2 * time.Minute
)

// Handler answers queries with JSON:
//
//	/services /backends /nodeports   {"items": [...]} of Service, Backend, NodePort, Address;
//	/addresses                       ?namespace= and ?name= filter
//	/names                           ["NAMESPACE/NAME", ...], of ?namespace=, with ?name= as prefix
//	/status                          Status
//	/diff                            Difference
//	/plan                            Difference from a kernel without rules
//	/events                          {"items": [...]} of Event
//	/settings                        Settings
//	/explain                         explain.Answer to ?source= ?destination= ?via=
//
// An error is answered with its message in plain text.
func (i *Inspector) Handler() http.Handler {
	mux := http.NewServeMux()
	query := func(path string, h http.HandlerFunc) {
		mux.Handle("GET "+path, i.queries.serve(h, answerTime, errQueries))
	}
	query("/services", items(i.Services))
	query("/backends", items(i.Backends))
	query("/nodeports", items(i.NodePorts))
	query("/addresses", items(i.Addresses))
	query("/names", func(w http.ResponseWriter, r *http.Request) {
		names, err := i.Names(r.Context(), Filter{Namespace: r.FormValue("namespace"), Name: r.FormValue("name")})
		respond(w, names, err)
	})
	query("/explain", func(w http.ResponseWriter, r *http.Request) {
		q, err := explain.Parse(r.FormValue("source"), r.FormValue("destination"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		q.Via = r.FormValue("via")
		answer, err := i.Explain(r.Context(), q)
		respond(w, answer, err)
	})
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) { respond(w, i.Status(r.Context()), nil) })
	for path, compare := range map[string]func(context.Context) (Difference, error){"/diff": i.opt.Diff, "/plan": i.opt.Plan} {
		mux.Handle("GET "+path, i.diffs.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			d, err := compare(r.Context())
			respond(w, d, err)
		}), diffTime, errDiffs))
	}
	mux.HandleFunc("GET /events", func(w http.ResponseWriter, _ *http.Request) { _ = writeItems(w, slices.Values(i.opt.History.Events())) })
	mux.HandleFunc("GET /settings", func(w http.ResponseWriter, _ *http.Request) { respond(w, i.opt.Settings, nil) })
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "unknown question "+r.Method+" "+r.URL.Path, http.StatusNotImplemented)
	})
	return mux
}

// respond writes an answer in JSON, or an error.
func respond(w http.ResponseWriter, answer any, err error) {
	_, missing := errors.AsType[*NotFoundError](err)
	switch {
	case missing:
		http.Error(w, err.Error(), http.StatusNotFound)
	case err != nil:
		http.Error(w, strings.TrimSpace(err.Error()), http.StatusServiceUnavailable)
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer) // fails if the client has closed the connection
	}
}

// items answers with a list. It encodes one item at a time, as a list may be larger than
// the memory limit of the process.
func items[T any](list func(context.Context, Filter) (iter.Seq[T], error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		f, err := ParseFilter(r.FormValue("name"), r.FormValue("namespace"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		seq, err := list(r.Context(), f)
		if err != nil {
			respond(w, nil, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = writeItems(w, seq) // fails if the client has closed the connection
	}
}

// itemsBytes is how much of a list is encoded before it is written.
const itemsBytes = 64 << 10

func writeItems[T any](w http.ResponseWriter, seq iter.Seq[T]) error {
	out := bufio.NewWriterSize(w, itemsBytes)
	enc := json.NewEncoder(out)
	_, _ = out.WriteString(`{"items":[`) // Flush reports errors
	separator := ""
	for v := range seq {
		if _, err := out.WriteString(separator); err != nil {
			return err
		}
		if err := enc.Encode(v); err != nil {
			return err
		}
		separator = ","
	}
	_, _ = out.WriteString("]}\n")
	return out.Flush()
}

// serial runs one handler at a time, each on a thread of its own. A query about very many
// Services computes for a second or more. On a shared thread, the kernel's scheduler would
// give other goroutines of that thread less CPU time afterwards, and the next change of a
// Service would be delayed on a busy machine.
type serial chan struct{}

// Errors of queries that have waited for others until their time-out.
var (
	errQueries = errors.New("other queries have not ended in time; try again")
	errDiffs   = errors.New("another comparison has not ended in time; try again")
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
			respond(w, nil, tooLate)
			return
		}
		defer s.unlock()
		ctx, cancel := context.WithTimeout(r.Context(), timeout)
		defer cancel()
		h.ServeHTTP(serialWriter{w, s}, r.WithContext(ctx))
	})
}

// serialWriter lets other handlers run during a write, which a slow client may block.
type serialWriter struct {
	http.ResponseWriter

	serial serial
}

// Write implements http.ResponseWriter.
func (w serialWriter) Write(p []byte) (int, error) {
	w.serial.unlock()
	defer w.serial.lock(context.Background())
	return w.ResponseWriter.Write(p)
}
