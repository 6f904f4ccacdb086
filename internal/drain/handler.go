package drain

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/internal/text"
)

const (
	defaultWait = 25 * time.Second // within the usual grace period of a pod, 30 s
	slowClient  = 10 * time.Second // for the answer
)

// Handler answers GET /drain?wait=25s of pods. Each is answered for itself alone: of returns the pod that has the
// address of the client, or an error. The status is 200 if the pod is drained, and 504 if time is up.
func (w *Waits) Handler(of func(context.Context, netip.Addr) (Pod, error)) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /drain", func(out http.ResponseWriter, r *http.Request) {
		limit := defaultWait
		if s := r.FormValue("wait"); s != "" {
			d, err := time.ParseDuration(s)
			if err != nil || d <= 0 || d > Longest {
				http.Error(out, fmt.Sprintf("wait=%q: want a time up to %s, such as 25s", s, Longest), http.StatusBadRequest)
				return
			}
			limit = d
		}
		from, err := netip.ParseAddrPort(r.RemoteAddr)
		pod := Pod{}
		if err == nil {
			pod, err = of(r.Context(), from.Addr().Unmap())
		}
		if err != nil {
			http.Error(out, err.Error(), http.StatusForbidden)
			return
		}
		_ = http.NewResponseController(out).SetWriteDeadline(time.Now().Add(limit + slowClient)) // otherwise it ends early
		w.answer(out, r, pod, limit)
	})
	return mux
}

func (w *Waits) answer(out http.ResponseWriter, r *http.Request, pod Pod, limit time.Duration) {
	result, err := w.Wait(r.Context(), pod, limit)
	switch {
	case errors.Is(err, ErrMany):
		http.Error(out, err.Error(), http.StatusTooManyRequests)
	case errors.Is(err, ErrNode):
		http.Error(out, err.Error(), http.StatusForbidden)
	case err != nil:
		http.Error(out, err.Error(), http.StatusInternalServerError)
	case !result.Drained:
		http.Error(out, Sentence(pod, result), http.StatusGatewayTimeout)
	default:
		fmt.Fprintln(out, Sentence(pod, result))
	}
}

// Sentence says how a wait ended.
func Sentence(pod Pod, r Result) string {
	switch took := text.Duration(r.Took); {
	case r.Drained:
		return fmt.Sprintf("%s is drained after %s", pod, took)
	case r.Live == 0:
		return fmt.Sprintf("%s has no connection after %s, but one came in the last %s", pod, took, text.Duration(Quiet))
	case r.About:
		return fmt.Sprintf("%s still has about %s after %s", pod, text.Count(r.Live, "connection"), took)
	default:
		return fmt.Sprintf("%s still has %s after %s", pod, text.Count(r.Live, "connection"), took)
	}
}
