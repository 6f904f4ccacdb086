package kube

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net/url"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// trouble is a kind of failure. A failure is logged if its kind is new; the texts
// of errors name ports and times, and differ each time.
type trouble string

const (
	unreachable  trouble = "unreachable"  // the network, or no listener
	untrusted    trouble = "untrusted"    // the certificate of the server
	unauthorized trouble = "unauthorized" // the credentials of this client
	forbidden    trouble = "forbidden"    // one kind of object
	failing      trouble = "failing"      // any other failure with one kind
)

// The message of each trouble in the log, and its remedy.
func (t trouble) text() string {
	switch t {
	case unreachable:
		return "Cannot reach the API server, retrying; the rules stay"
	case untrusted:
		return "Cannot trust the API server, retrying; the rules stay; " +
			"the kubeconfig must name its address and its certificate authority"
	case unauthorized:
		return "The API server does not accept the credentials, retrying; the rules stay; " +
			"renew those of the kubeconfig or service account"
	case forbidden:
		return "The API server forbids reading, retrying; the rules stay; grant list and watch on services, " +
			"endpointslices, nodes and servicecidrs, as the cluster role system:node-proxier does"
	default:
		return "Cannot list or watch, retrying; the rules stay"
	}
}

// textOptional is the message of each trouble with ServiceCIDRs, which only one
// feature needs.
const textOptional = "ServiceCIDRs cannot be listed; unused service addresses are not dropped until they can"

// troubleOf sorts the error of a request.
func troubleOf(err error) trouble {
	switch {
	case apierrors.IsUnauthorized(err):
		return unauthorized
	case apierrors.IsForbidden(err):
		return forbidden
	case isType[*tls.CertificateVerificationError](err):
		return untrusted
	case isType[*url.Error](err):
		return unreachable
	default:
		return failing
	}
}

func isType[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// serverHealth records whether the API server answers. It logs each failure once,
// and once that it ended. All feeds of a Source share it.
type serverHealth struct {
	log     *slog.Logger
	retries retries

	mu      sync.Mutex
	answers int                // how many there were
	outages int                // how many began
	outage  trouble            // of the server as a whole; empty: none
	server  string             // its URL, as far as a failure named it
	kinds   map[string]trouble // of one kind of object each
	why     map[string]string  // the error of each kind in trouble; of "": the outage's

	connected bool
	since     time.Time // of the value of connected; zero if it never changed
}

func newServerHealth(log *slog.Logger) *serverHealth {
	return &serverHealth{log: log, retries: newRetries(), kinds: map[string]trouble{}, why: map[string]string{}}
}

// request is one request for objects of a kind.
type request struct {
	to    *serverHealth
	kind  string
	after int // answers to other requests before it began

	// outages is how many had begun before it did. The answer to a request from before an
	// outage may arrive after that was noticed, and does not end it.
	outages int
}

// begin is called before a request is sent.
func (h *serverHealth) begin(kind string) request {
	h.mu.Lock()
	defer h.mu.Unlock()
	return request{to: h, kind: kind, after: h.answers, outages: h.outages}
}

// succeeded records that the server answered a request as asked.
func (r request) succeeded() {
	h := r.to
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answers++
	h.answered(r)
	if _, had := h.kinds[r.kind]; had {
		delete(h.kinds, r.kind)
		delete(h.why, r.kind)
		h.log.Info("The API server answers again", "kind", r.kind)
	}
}

// failed records that the request failed. It ignores canceled requests.
func (r request) failed(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	h, t := r.to, troubleOf(err)
	h.mu.Lock()
	defer h.mu.Unlock()
	if t == forbidden || t == failing {
		h.kindFailed(r, t, err)
		return
	}
	if h.outage == t || r.after != h.answers { // another request succeeded since
		return
	}
	h.outage = t
	h.outages++
	if failed, ok := errors.AsType[*url.Error](err); ok {
		h.server, err = base(failed.URL), failed.Err
	}
	h.beginOutage(err)
	h.log.LogAttrs(ctx, slog.LevelWarn, t.text(), h.where(slog.Any("error", err))...)
}

// kindFailed records a failure with one kind.
func (h *serverHealth) kindFailed(r request, t trouble, err error) {
	kind := r.kind
	if apierrors.ReasonForError(err) != "" {
		h.answered(r) // a refusal is an answer
	}
	h.why[kind] = err.Error()
	if h.kinds[kind] == t {
		return
	}
	h.kinds[kind] = t
	text := t.text()
	if kind == kindServiceCIDRs {
		text = textOptional
	}
	h.log.Warn(text, "kind", kind, "error", err)
}

// beginOutage records that the server does not answer.
func (h *serverHealth) beginOutage(err error) {
	h.why[""] = err.Error()
	if h.connected {
		h.connected, h.since = false, time.Now()
	}
}

// answered records that the server answers a request, and ends an outage if there is one.
func (h *serverHealth) answered(r request) {
	if h.outage != "" && r.outages < h.outages {
		return
	}
	delete(h.why, "")
	if !h.connected {
		h.connected, h.since = true, time.Now()
	}
	if h.outage == "" {
		return
	}
	h.outage = ""
	h.log.LogAttrs(context.Background(), slog.LevelInfo, "The API server answers again", h.where()...)
}

// where prepends the server to other attributes.
func (h *serverHealth) where(rest ...slog.Attr) []slog.Attr {
	if h.server == "" {
		return rest
	}
	return append([]slog.Attr{slog.String("server", h.server)}, rest...)
}

// base is the part of a URL that names a server.
func base(of string) string {
	u, err := url.Parse(of)
	if err != nil {
		return of
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host}).String()
}
