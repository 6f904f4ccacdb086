package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/record/util"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/sluice-proxy/sluice/internal/event"
)

// controller is the reportingController of Events.
const controller = "kube-proxy"

// The rate of Events. Each is one or two requests of the client that also watches, and must not delay its requests.
const (
	eventQueue = 100 // more at once are left out
	eventBurst = 25
	eventRate  = 1 // for each second, after the burst

	// An Event that all nodes make is sent by each after a random wait of up to sharedSpread, a few at once and then one
	// per sharedSpread: 5,000 nodes make 500 requests a second for some seconds, and one Event.
	sharedSpread = 20 * time.Second
	sharedBurst  = 5
)

// The longest texts that the API takes, in bytes.
const (
	longestNote     = 1024
	longestInstance = 128
)

// RecorderOptions are the parts of a Recorder.
type RecorderOptions struct {
	Client   *Client
	NodeName string // of the own Node
	Log      *slog.Logger

	// Spread is the longest random wait before an Event that all nodes make. The default, for 0, suits large clusters.
	Spread time.Duration
}

// Recorder writes Events to an API server. It is safe for concurrent use.
type Recorder struct {
	options RecorderOptions
	queue   chan event.Event

	// Run alone uses these.
	recent  map[eventKey]*counted
	refused bool // the server refused the last Event, which is logged
}

// NewRecorder makes a Recorder. Events wait for Run.
func NewRecorder(o RecorderOptions) *Recorder {
	if o.Spread == 0 {
		o.Spread = sharedSpread
	}
	return &Recorder{options: o, queue: make(chan event.Event, eventQueue), recent: map[eventKey]*counted{}}
}

// Record writes an Event later, and returns at once. Equal Events of one object become one with a
// count. Events that do not fit into the queue are dropped.
func (r *Recorder) Record(e event.Event) {
	if e.Everywhere {
		time.AfterFunc(rand.N(r.options.Spread), func() { r.enqueue(e) })
		return
	}
	r.enqueue(e)
}

func (r *Recorder) enqueue(e event.Event) {
	select {
	case r.queue <- e:
	default:
		r.options.Log.Debug("Too many Events, left out", "reason", e.Reason, "note", e.Note)
	}
}

// Run writes Events until the context ends. It logs a refusal of the server once and continues.
func (r *Recorder) Run(ctx context.Context) error {
	pace := flowcontrol.NewTokenBucketRateLimiter(eventRate, eventBurst)
	shared := flowcontrol.NewTokenBucketRateLimiter(float32(time.Second)/float32(r.options.Spread), sharedBurst)
	series := time.NewTicker(eventSeries)
	defer series.Stop()
	for {
		select {
		case <-ctx.Done():
			r.last(ctx)
			return nil
		case <-series.C:
			r.writeCounts(ctx)
			continue
		case e := <-r.queue:
			if e.Everywhere && !shared.TryAccept() {
				r.Record(e) // later
				continue
			}
			if !r.take(ctx, r.made(e)) {
				continue // no request was sent
			}
		}
		if pace.Wait(ctx) != nil {
			return nil // the context ended
		}
	}
}

// last writes the queued Events when the program ends, as one may name the reason.
func (r *Recorder) last(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTimeout)
	defer cancel()
	for {
		select {
		case e := <-r.queue:
			r.take(ctx, r.made(e))
		default:
			return
		}
	}
}

// lastTimeout bounds how long the end of the program waits for Events.
const lastTimeout = 500 * time.Millisecond

// made returns the API object of an Event. If all nodes make it, it has the same name everywhere: one object.
func (r *Recorder) made(e event.Event) *eventsv1.Event {
	on, now := r.reference(e.Object), time.Now()
	name := util.GenerateEventName(on.Name, now.UnixNano())
	if e.Everywhere {
		name = sharedName(e, on)
	}
	return &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Name:      name,
			Namespace: cmp.Or(on.Namespace, metav1.NamespaceDefault),
		},
		EventTime:           metav1.NewMicroTime(now),
		ReportingController: controller,
		ReportingInstance:   cut(r.options.NodeName, longestInstance),
		Type:                string(e.Type),
		Reason:              e.Reason,
		Action:              e.Action,
		Regarding:           *on,
		Note:                cut(e.Note, longestNote),
	}
}

// sharedName is the name of an Event that is the same on all nodes.
func sharedName(e event.Event, on *corev1.ObjectReference) string {
	h := fnv.New64a()
	if e.Key != "" {
		fmt.Fprint(h, e.Key)
		return util.GenerateEventName("repeated", int64(h.Sum64()>>1))
	}
	fmt.Fprint(h, on.Kind, on.Namespace, "/", on.Name, e.Reason, e.Note)
	return util.GenerateEventName(on.Name, int64(h.Sum64()>>1))
}

// reference returns the reference to an object. kubectl looks up Events of a Node by its name in place of the UID.
func (r *Recorder) reference(o event.Object) *corev1.ObjectReference {
	if o == (event.Object{}) {
		o = event.Object{Kind: "Node", Name: r.options.NodeName}
	}
	ref := &corev1.ObjectReference{APIVersion: apiVersion(o.Kind), Kind: o.Kind, Namespace: o.Namespace, Name: o.Name}
	if o.Kind == "Node" {
		ref.UID = types.UID(o.Name)
	}
	return ref
}

func apiVersion(kind string) string {
	switch kind {
	case "EndpointSlice":
		return discoveryv1.SchemeGroupVersion.String()
	case "ServiceCIDR":
		return networkingv1.SchemeGroupVersion.String()
	default:
		return corev1.SchemeGroupVersion.String()
	}
}

// cut returns the beginning of a text, whole characters of it.
func cut(text string, longest int) string {
	if len(text) <= longest {
		return text
	}
	return strings.ToValidUTF8(text[:longest-len("…")], "") + "…"
}

// Events are written as client-go does, whose package would add the types of every kind of object to the program.
const (
	eventSeries = 6 * time.Minute  // equal Events within it become one with a count
	eventRetry  = 10 * time.Second // between attempts, and up to a quarter more
	eventTries  = 12
)

// eventKey has the fields in which equal Events agree.
type eventKey struct {
	kind, reason, action string
	regarding            corev1.ObjectReference
}

// counted is an Event that was written.
type counted struct {
	event   *eventsv1.Event
	written int32 // the count that the server has
}

// take writes an Event, or counts it: of equal ones the first two are written. It reports whether it wrote.
func (r *Recorder) take(ctx context.Context, e *eventsv1.Event) bool {
	key := eventKey{e.Type, e.Reason, e.Action, e.Regarding}
	c := r.recent[key]
	switch {
	case c == nil:
		c = &counted{event: e}
		r.recent[key] = c
	case c.event.Series == nil:
		c.event.Series = &eventsv1.EventSeries{Count: 2, LastObservedTime: e.EventTime}
	default:
		c.event.Series.Count++
		c.event.Series.LastObservedTime = e.EventTime
		return false
	}
	r.write(ctx, c)
	return true
}

// writeCounts writes the counts that the server lacks, and forgets Events not repeated within eventSeries.
func (r *Recorder) writeCounts(ctx context.Context) {
	for key, c := range r.recent {
		last := c.event.EventTime
		if s := c.event.Series; s != nil {
			last = s.LastObservedTime
			if s.Count != c.written {
				r.write(ctx, c)
			}
		}
		if time.Since(last.Time) > eventSeries {
			delete(r.recent, key)
		}
	}
}

// write writes an Event until the server has it or refuses it.
func (r *Recorder) write(ctx context.Context, c *counted) {
	for range eventTries {
		again := r.attempt(ctx, c.event.DeepCopy())
		if !again {
			break
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait.Jitter(eventRetry, 0.25)):
		}
	}
	if s := c.event.Series; s != nil {
		c.written = s.Count
	}
}

// attempt writes an Event once, and reports whether to try again.
func (r *Recorder) attempt(ctx context.Context, e *eventsv1.Event) (again bool) {
	api := r.options.Client.events(e.Namespace)
	var err error
	if e.Series != nil {
		_, err = api.Patch(ctx, e.Name, types.StrategicMergePatchType, seriesPatch(e.Series), metav1.PatchOptions{})
	}
	if e.Series == nil || apierrors.IsNotFound(err) {
		if e.Regarding.Kind == "Service" && e.Regarding.UID == "" {
			e.Regarding.UID = r.uid(ctx, e.Regarding) // kubectl describe selects by it
		}
		_, err = api.Create(ctx, e, metav1.CreateOptions{})
	}
	if apierrors.IsAlreadyExists(err) {
		err = nil // another node was faster
	}
	r.logRefusal(err)
	return err != nil && apierrors.ReasonForError(err) == metav1.StatusReasonUnknown // no server answered
}

func seriesPatch(s *eventsv1.EventSeries) []byte {
	at, _ := json.Marshal(s.LastObservedTime) // a time always can be
	return fmt.Appendf(nil, `{"series":{"count":%d,"lastObservedTime":%s}}`, s.Count, at)
}

// uid lists to find the UID of a Service, as a proxy may not get one. Empty: the Service is not visible.
func (r *Recorder) uid(ctx context.Context, of corev1.ObjectReference) types.UID {
	var uid types.UID
	_, err := r.options.Client.services(of.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector(metav1.ObjectNameField, of.Name).String(),
		ResourceVersion: "0", // from the server's cache
	}, func(svc object) error {
		if svc.GetName() == of.Name {
			uid = svc.GetUID()
		}
		return nil
	})
	if err != nil {
		return ""
	}
	return uid
}

// logRefusal logs once that the server refuses Events, until it takes one. It logs other failures at the debug level.
func (r *Recorder) logRefusal(err error) {
	log := r.options.Log
	switch {
	case err == nil:
		r.refused = false
	case !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err),
		apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		log.Debug("Cannot write an Event", slog.Any("error", err))
	case !r.refused:
		r.refused = true
		log.Warn("The API server refuses Events; everything else works; grant create, patch and update "+
			"on events in events.k8s.io, as the cluster role system:node-proxier does", "error", err)
	}
}
