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
	defaultWait  = 25 * time.Second // less than the default grace period of a pod, 30 s
	writeTimeout = 10 * time.Second
)

// Handler serves GET /drain?wait=25s to pods. A pod can wait for itself only: find returns the pod that has the address
// of the client, or an error. The status is 200 if the pod is drained, and 504 if time is up.
func (w *Waits) Handler(find func(context.Context, netip.Addr) (Pod, error)) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /drain", func(out http.ResponseWriter, r *http.Request) {
		limit := defaultWait
		if s := r.FormValue("wait"); s != "" {
			d, err := time.ParseDuration(s)
			if err != nil || d <= 0 || d > MaxWait {
				http.Error(out, fmt.Sprintf("wait=%q: want a time up to %s, such as 25s", s, MaxWait), http.StatusBadRequest)
				return
			}
			limit = d
		}
		from, err := netip.ParseAddrPort(r.RemoteAddr)
		pod := Pod{}
		if err == nil {
			pod, err = find(r.Context(), from.Addr().Unmap())
		}
		if err != nil {
			http.Error(out, err.Error(), http.StatusForbidden)
			return
		}
		_ = http.NewResponseController(out).SetWriteDeadline(time.Now().Add(limit + writeTimeout)) // longer than the server's
		w.serve(out, r, pod, limit)
	})
	return mux
}

func (w *Waits) serve(out http.ResponseWriter, r *http.Request, pod Pod, limit time.Duration) {
	result, err := w.Wait(r.Context(), pod, limit)
	switch {
	case errors.Is(err, ErrTooMany):
		http.Error(out, err.Error(), http.StatusTooManyRequests)
	case errors.Is(err, ErrHostNetwork):
		http.Error(out, err.Error(), http.StatusForbidden)
	case err != nil:
		http.Error(out, err.Error(), http.StatusInternalServerError)
	case !result.Drained:
		http.Error(out, Sentence(pod, result), http.StatusGatewayTimeout)
	default:
		fmt.Fprintln(out, Sentence(pod, result))
	}
}

// Sentence returns the result of a wait as a sentence.
func Sentence(pod Pod, r Result) string {
	switch took := text.Duration(r.Took); {
	case r.Drained:
		return fmt.Sprintf("%s is drained after %s", pod, took)
	case r.Live == 0:
		return fmt.Sprintf("%s has no connection after %s, but one began in the last %s", pod, took, text.Duration(Quiet))
	case r.Estimated:
		return fmt.Sprintf("%s still has about %s after %s", pod, text.Count(r.Live, "connection"), took)
	default:
		return fmt.Sprintf("%s still has %s after %s", pod, text.Count(r.Live, "connection"), took)
	}
}
