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

// trouble is a sort of failure. The sort and not the text of an error says
// whether something is new: texts name ports and times.
type trouble string

const (
	unreachable  trouble = "unreachable"  // the network, or nobody listens
	untrusted    trouble = "untrusted"    // the certificate of the server
	unauthorized trouble = "unauthorized" // the credentials of this client
	forbidden    trouble = "forbidden"    // one kind of object
	failing      trouble = "failing"      // whatever else goes wrong with one kind
)

// what each trouble is called in the log, and what helps.
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

// textOptional is the text of each trouble with ServiceCIDRs, without which
// all but one thing works.
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

// contact says once what is wrong between this client and its server, and
// once that it is over. All feeds of a Source share it.
type contact struct {
	log *slog.Logger

	turn chan struct{} // held by who asks again while nobody answers

	mu      sync.Mutex
	answers int                // how many there were
	outage  trouble            // of the server as a whole; empty: none
	server  string             // its URL, as far as a failure told
	kinds   map[string]trouble // of one kind of object each
	why     map[string]string  // the error of each kind in trouble; of "": the outage's

	connected bool
	since     time.Time // connected is as it is; zero: it never changed
}

func newContact(log *slog.Logger) *contact {
	return &contact{log: log, turn: make(chan struct{}, 1), kinds: map[string]trouble{}, why: map[string]string{}}
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

// succeeded says that the server gave what it was asked for.
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

// failed says that the request did not succeed. A request that was given up
// says nothing.
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
	if told, ok := errors.AsType[*url.Error](err); ok {
		c.server, err = base(told.URL), told.Err
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

// where puts the server before other attributes.
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
