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
		return "Cannot trust the API server, retrying; the rules stay; the kubeconfig must name its address and its certificate authority"
	case unauthorized:
		return "The API server does not accept the credentials, retrying; the rules stay; renew those of the kubeconfig or service account"
	case forbidden:
		return "The API server forbids reading, retrying; the rules stay; grant list and watch on services, endpointslices, nodes " +
			"and servicecidrs, as the cluster role system:node-proxier does"
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

// contact logs each failure between this client and its server once, and once that
// it ended. All feeds of a Source share it.
type contact struct {
	log *slog.Logger

	retry chan struct{} // held by the feed that retries while the server does not answer

	mu      sync.Mutex
	answers int                // how many there were
	outage  trouble            // of the server as a whole; empty: none
	server  string             // its URL, as far as a failure named it
	kinds   map[string]trouble // of one kind of object each
	why     map[string]string  // the error of each kind in trouble; of "": the outage's

	connected bool
	since     time.Time // connected is as it is; zero: it never changed
}

func newContact(log *slog.Logger) *contact {
	return &contact{log: log, retry: make(chan struct{}, 1), kinds: map[string]trouble{}, why: map[string]string{}}
}

// request is one request for objects of a kind.
type request struct {
	to    *contact
	kind  string
	after int // answers to other requests before it began
}

// begin is called before a request is sent.
func (c *contact) begin(kind string) request {
	c.mu.Lock()
	defer c.mu.Unlock()
	return request{to: c, kind: kind, after: c.answers}
}

// succeeded records that the server answered a request as asked.
func (r request) succeeded() {
	c := r.to
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers++
	c.over()
	if _, had := c.kinds[r.kind]; had {
		delete(c.kinds, r.kind)
		delete(c.why, r.kind)
		c.log.Info("The API server answers again", "kind", r.kind)
	}
}

// failed records that the request failed. It ignores canceled requests.
func (r request) failed(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	c, t := r.to, troubleOf(err)
	c.mu.Lock()
	defer c.mu.Unlock()
	if t == forbidden || t == failing {
		c.kind(r.kind, t, err)
		return
	}
	if c.outage == t || r.after != c.answers { // another request succeeded since
		return
	}
	c.outage = t
	if failed, ok := errors.AsType[*url.Error](err); ok {
		c.server, err = base(failed.URL), failed.Err
	}
	c.lost(err)
	c.log.LogAttrs(ctx, slog.LevelWarn, t.text(), c.where(slog.Any("error", err))...)
}

func (c *contact) kind(kind string, t trouble, err error) {
	if apierrors.ReasonForError(err) != "" {
		c.over() // a refusal is an answer
	}
	c.why[kind] = err.Error()
	if c.kinds[kind] == t {
		return
	}
	c.kinds[kind] = t
	text := t.text()
	if kind == kindServiceCIDRs {
		text = textOptional
	}
	c.log.Warn(text, "kind", kind, "error", err)
}

// lost begins an outage.
func (c *contact) lost(err error) {
	c.why[""] = err.Error()
	if c.connected {
		c.connected, c.since = false, time.Now()
	}
}

// over is called at every answer, and ends an outage if there is one.
func (c *contact) over() {
	delete(c.why, "")
	if !c.connected {
		c.connected, c.since = true, time.Now()
	}
	if c.outage == "" {
		return
	}
	c.outage = ""
	c.log.LogAttrs(context.Background(), slog.LevelInfo, "The API server answers again", c.where()...)
}

// where prepends the server to other attributes.
func (c *contact) where(rest ...slog.Attr) []slog.Attr {
	if c.server == "" {
		return rest
	}
	return append([]slog.Attr{slog.String("server", c.server)}, rest...)
}

// base is the part of a URL that names a server.
func base(of string) string {
	u, err := url.Parse(of)
	if err != nil {
		return of
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host}).String()
}
