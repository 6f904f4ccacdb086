package inspect

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"time"
)

// turn lets one question at a time be worked on, by a thread of its own. A
// question about very many Services computes for a second or more. If it did so
// on the threads that run everything else, the scheduler of the kernel would
// count that against those, and on a busy machine the next change of a Service
// would wait for some of them to be due again.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

// take waits for the turn until the context ends; false: it ended.
func (t turn) take(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case t <- struct{}{}:
		runtime.LockOSThread()
		return true
	}
}

func (t turn) release() {
	runtime.UnlockOSThread()
	<-t
}

// errWaiting says that other questions came first.
var errWaiting = errors.New("other questions are being answered and have not ended in time; try again")

// serve answers with h when it is its turn.
func (t turn) serve(h http.Handler, limit time.Duration, tooLate error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), limit)
		defer cancel()
		if !t.take(ctx) {
			refuse(w, tooLate, http.StatusServiceUnavailable)
			return
		}
		defer t.release()
		h.ServeHTTP(turnWriter{w, t}, r)
	})
}

// turnWriter passes the turn on while a client reads, however slowly it does.
type turnWriter struct {
	http.ResponseWriter

	turn turn
}

// Write implements http.ResponseWriter.
func (w turnWriter) Write(p []byte) (int, error) {
	w.turn.release()
	defer w.turn.take(context.Background())
	return w.ResponseWriter.Write(p)
}
