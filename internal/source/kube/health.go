package kube

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/sluice-proxy/sluice/internal/source"
)

// trouble is a class of failures. A failure of a new class is logged; the texts of errors differ each time.
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

// textOptional is the message of each trouble with ServiceCIDRs, which only one feature needs.
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

// failure is a present failure of the server, or with one kind of object.
type failure struct {
	trouble trouble
	reason  string
}

// serverHealth records whether the API server answers, for all feeds. It logs each failure and its end once.
type serverHealth struct {
	log     *slog.Logger
	server  string // its URL
	retries retries

	mu       sync.Mutex
	answers  int                // how many there were
	outages  int                // how many began
	failures map[string]failure // with each kind of object; of "", of the server as a whole

	connected bool
	since     time.Time // of the value of connected; zero if it never changed
}

func newServerHealth(log *slog.Logger, server string) *serverHealth {
	return &serverHealth{log: log, server: server, retries: newRetries(), failures: map[string]failure{}}
}

// request is one request for objects of a kind.
type request struct {
	to    *serverHealth
	kind  string
	after int // answers to other requests before it began

	// outages is how many had begun before it did. A late answer to an earlier request does not end an outage.
	outages int
}

// begin is called before a request is sent.
func (h *serverHealth) begin(kind string) request {
	h.mu.Lock()
	defer h.mu.Unlock()
	return request{to: h, kind: kind, after: h.answers, outages: h.outages}
}

// ended records the outcome of the request. It ignores canceled requests, and a resource version that is too old.
func (r request) ended(ctx context.Context, err error) {
	if err != nil && (ctx.Err() != nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err)) {
		return
	}
	h := r.to
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.failed(r, err)
		return
	}
	h.answers++
	h.answered(r)
	if _, failed := h.failures[r.kind]; failed {
		delete(h.failures, r.kind)
		h.log.Info("The API server answers again", "kind", r.kind)
	}
}

// failed records that a request failed.
func (h *serverHealth) failed(r request, err error) {
	t := troubleOf(err)
	if t == forbidden || t == failing {
		h.kindFailed(r, t, err)
		return
	}
	if h.failures[""].trouble == t || r.after != h.answers { // another request succeeded since
		return
	}
	if failed, ok := errors.AsType[*url.Error](err); ok {
		err = failed.Err
	}
	h.outages++
	h.failures[""] = failure{t, err.Error()}
	if h.connected {
		h.connected, h.since = false, time.Now()
	}
	h.log.Warn(t.text(), "server", h.server, "error", err)
}

// kindFailed records a failure with one kind.
func (h *serverHealth) kindFailed(r request, t trouble, err error) {
	if apierrors.ReasonForError(err) != "" {
		h.answered(r) // a refusal is an answer
	}
	known := h.failures[r.kind].trouble == t
	h.failures[r.kind] = failure{t, err.Error()}
	if known {
		return
	}
	text := t.text()
	if r.kind == kindServiceCIDRs {
		text = textOptional
	}
	h.log.Warn(text, "kind", r.kind, "error", err)
}

// answered records that the server answers a request, and ends an outage if there is one.
func (h *serverHealth) answered(r request) {
	_, outage := h.failures[""]
	if outage && r.outages < h.outages {
		return
	}
	delete(h.failures, "")
	if !h.connected {
		h.connected, h.since = true, time.Now()
	}
	if outage {
		h.log.Info("The API server answers again", "server", h.server)
	}
}

func (h *serverHealth) state() source.State {
	h.mu.Lock()
	defer h.mu.Unlock()
	st := source.State{Connected: h.connected, Since: h.since}
	var troubles []string
	for _, kind := range slices.Sorted(maps.Keys(h.failures)) { // the server itself first
		f := h.failures[kind]
		troubles = append(troubles, strings.TrimPrefix(kind+": "+string(f.trouble)+": "+f.reason, ": "))
	}
	st.Trouble = strings.Join(troubles, "; ")
	return st
}

// base is the part of a URL that names a server.
func base(of *url.URL) string { return (&url.URL{Scheme: of.Scheme, Host: of.Host}).String() }

// observed reports the outcome of each request of a lister to the health of its server.
type observed struct {
	api  lister
	kind string
	to   *serverHealth
}

func (l observed) List(ctx context.Context, o metav1.ListOptions, take func(object) error) (metav1.ListMeta, error) {
	return retryUnanswered(ctx, l.to.retries, func() (metav1.ListMeta, error) {
		r := l.to.begin(l.kind)
		list, err := l.api.List(ctx, o, take)
		r.ended(ctx, err)
		return list, err
	})
}

func (l observed) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return retryUnanswered(ctx, l.to.retries, func() (watch.Interface, error) {
		r := l.to.begin(l.kind)
		w, err := l.api.Watch(ctx, o)
		if err == nil && reflect.TypeOf(w) == reflect.TypeOf(watch.NewEmptyWatch()) {
			w, err = nil, &url.Error{Op: "Watch", Err: errLost}
		}
		r.ended(ctx, err)
		return w, err
	})
}

// retries paces the retries of the feeds of a Source.
type retries struct {
	holder chan struct{} // held by the feed that retries while the server does not answer
	pause  wait.Backoff
}

func newRetries() retries {
	return retries{
		holder: make(chan struct{}, 1),
		pause:  wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 6, Cap: time.Second},
	}
}

// retryUnanswered repeats a request until the server answers or the context ends. A reflector would wait between
// attempts for up to half a minute, and notice as late that the server is back. Of all feeds that wait, only the holder
// of the retries sends a request every second or two. Slow answers are left to the reflector and its back-off.
func retryUnanswered[T any](ctx context.Context, by retries, request func() (T, error)) (T, error) {
	answer, err := request()
	if !unanswered(err) {
		return answer, err
	}
	select {
	case <-ctx.Done():
		return answer, err
	case by.holder <- struct{}{}:
		defer func() { <-by.holder }()
	}
	for {
		select {
		case <-ctx.Done():
			return answer, err
		case <-time.After(by.pause.Step()):
		}
		if answer, err = request(); !unanswered(err) {
			return answer, err
		}
	}
}

// unanswered reports whether a request failed because no server took it.
func unanswered(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EHOSTUNREACH) ||
		errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, errLost)
}

// errLost is the client's error after some watches that ended without any event: the
// peer closes each connection, as a load balancer without servers does.
var errLost = errors.New("connections are closed without an answer")

// listing lists and watches for a reflector. Objects of a list go to a sink as they arrive, and the reflector gets an
// empty list. Why it is a list and not a stream of events: docs/decisions/0031-one-list-at-the-start.md.
type listing struct{ *cache.ListWatch }

func newListing(f feed, from lister) listing {
	return listing{&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector, o.FieldSelector = f.labels, f.fields
			if o.Continue == "" {
				f.to.begin()
			}
			m, err := from.List(ctx, o, f.to.arrive)
			if f.optional && (apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsMethodNotSupported(err)) {
				f.to.done()
			}
			return &metav1.PartialObjectMetadataList{ListMeta: m}, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector, o.FieldSelector = f.labels, f.fields
			return from.Watch(ctx, o)
		},
	}}
}

// IsWatchListSemanticsUnSupported makes the reflector list; client-go defines the name.
func (listing) IsWatchListSemanticsUnSupported() bool { return true }
