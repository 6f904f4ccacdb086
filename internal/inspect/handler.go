package inspect

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net/http"
	"strings"
	"time"
)

// answerTime is how long an answer waits for the loop, diffTime for the kernel
// to be read as well.
const (
	answerTime = 10 * time.Second
	diffTime   = 2 * time.Minute
)

// Handler answers questions with JSON:
//
//	/services /backends /nodeports   {"items": [...]} of Service, Backend, NodePort;
//	                                 ?namespace= and ?name= choose
//	/names                           ["NAMESPACE/NAME", ...], of ?namespace=, with ?name= as prefix
//	/status                          Status
//	/diff                            Difference
//	/explain                         what Options.Explain answers
//
// Where there is no answer it says why, in plain text.
func (i *Inspector) Handler() http.Handler {
	mux := http.NewServeMux()
	inTurn := func(h http.Handler) http.Handler { return i.asking.serve(h, answerTime, errWaiting) }
	mux.Handle("GET /services", inTurn(items(i.Services)))
	mux.Handle("GET /backends", inTurn(items(i.Backends)))
	mux.Handle("GET /nodeports", inTurn(items(i.NodePorts)))
	mux.Handle("GET /names", inTurn(http.HandlerFunc(i.names)))
	mux.HandleFunc("GET /status", i.status)
	mux.Handle("GET /diff", i.comparing.serve(http.HandlerFunc(i.diff), diffTime, errComparing))
	mux.Handle("GET /explain", inTurn(i.opt.Explain))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "unknown question "+r.Method+" "+r.URL.Path, http.StatusNotImplemented)
	})
	return mux
}

// items answers with a list, one item at a time: it may be long, and this
// process small.
func items[T any](list func(context.Context, Filter) (iter.Seq[T], error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		f, err := ParseFilter(r.FormValue("name"), r.FormValue("namespace"))
		if err != nil {
			refuse(w, err, http.StatusBadRequest)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), answerTime)
		defer cancel()
		seq, err := list(ctx, f)
		if err != nil {
			refuse(w, err, http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = writeItems(w, seq) // who asked may have gone
	}
}

// itemsBytes is how much of a list is made before it is written.
const itemsBytes = 64 << 10

func writeItems[T any](w http.ResponseWriter, seq iter.Seq[T]) error {
	out := bufio.NewWriterSize(w, itemsBytes)
	enc := json.NewEncoder(out)
	separator := `{"items":[`
	for v := range seq {
		if _, err := out.WriteString(separator); err != nil {
			return err
		}
		if err := enc.Encode(v); err != nil {
			return err
		}
		separator = ","
	}
	if separator != "," {
		_, _ = out.WriteString(separator) // Flush tells
	}
	_, _ = out.WriteString("]}\n")
	return out.Flush()
}

func (i *Inspector) names(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), answerTime)
	defer cancel()
	names, err := i.Names(ctx, Filter{Namespace: r.FormValue("namespace"), Name: r.FormValue("name")})
	if err != nil {
		refuse(w, err, http.StatusServiceUnavailable)
		return
	}
	said := make([]string, len(names))
	for i, n := range names {
		said[i] = n.String()
	}
	answer(w, said)
}

func (i *Inspector) status(w http.ResponseWriter, r *http.Request) { answer(w, i.Status(r.Context())) }

func (i *Inspector) diff(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), diffTime)
	defer cancel()
	d, err := i.opt.Diff(ctx)
	if err != nil {
		refuse(w, err, http.StatusServiceUnavailable)
		return
	}
	answer(w, d)
}

// errComparing says that others were before.
var errComparing = errors.New("another comparison is under way and has not ended in time; try again")

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // who asked may have gone
}

// refuse says why there is no answer, with the code for it or the one for all else.
func refuse(w http.ResponseWriter, err error, code int) {
	if _, missing := errors.AsType[*NotFoundError](err); missing {
		code = http.StatusNotFound
	}
	http.Error(w, strings.TrimSpace(err.Error()), code)
}
