package kube

import (
	"context"
	"log/slog"
	"sync/atomic"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"github.com/sluice-proxy/sluice/internal/event"
)

// controller is who reports Events: people and programs look for this name.
const controller = "kube-proxy"

// The pace of Events. Each is a request or two of the client that watches, which
// has more important things to ask.
const (
	eventQueue = 100 // more at once are left out
	eventBurst = 25
	eventRate  = 1 // for each second, after the burst
)

// The longest texts that the API takes, in bytes.
const (
	longestNote     = 1024
	longestInstance = 128
)

// RecorderOptions are the parts of a Recorder.
type RecorderOptions struct {
	Client   kubernetes.Interface
	NodeName string       // of the own Node
	Log      *slog.Logger // nil: silence
}

// Recorder brings Events to an API server. It implements event.Recorder.
type Recorder struct {
	options RecorderOptions
	queue   chan event.Event
}

// NewRecorder assembles a Recorder. What is recorded waits for Run.
func NewRecorder(o RecorderOptions) *Recorder {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Recorder{options: o, queue: make(chan event.Event, eventQueue)}
}

// Record implements event.Recorder. Equal Events of one object become one that
// counts them; when very many come at once some are left out.
func (r *Recorder) Record(e event.Event) {
	select {
	case r.queue <- e:
	default:
		r.options.Log.Debug("Too many Events, left out", "reason", e.Reason, "note", e.Note)
	}
}

// Run passes Events on until the context ends. A server that refuses them is
// logged once and no reason to end.
func (r *Recorder) Run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, logr.FromSlogHandler(demoted{r.options.Log.Handler()}))
	broadcaster := events.NewBroadcaster(&eventSink{options: r.options})
	defer broadcaster.Shutdown()
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return err
	}
	to := broadcaster.NewRecorder(scheme.Scheme, controller).WithLogger(klog.FromContext(ctx))
	pace := flowcontrol.NewTokenBucketRateLimiter(eventRate, eventBurst)
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-r.queue:
			to.Eventf(r.reference(e.Object), nil, string(e.Type), e.Reason, e.Action, "%s", cut(e.Note, longestNote))
		}
		if pace.Wait(ctx) != nil {
			return nil // the context ended
		}
	}
}

// reference names an object as the API does. A Node's Events are looked up with
// its name for UID.
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
	end := 0
	for i := range text {
		if i > longest-len("…") {
			break
		}
		end = i
	}
	return text[:end] + "…"
}

// eventSink writes Events. It implements events.EventSink.
type eventSink struct {
	options RecorderOptions
	refused atomic.Bool // the last one was, and it is logged
}

// Create implements events.EventSink. It says which node reports, and which
// Service is meant: `kubectl describe` looks for the UID.
func (s *eventSink) Create(ctx context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	e.ReportingInstance = cut(s.options.NodeName, longestInstance)
	if e.Regarding.Kind == "Service" && e.Regarding.UID == "" {
		e.Regarding.UID = s.uid(ctx, e.Regarding)
	}
	return s.told(s.options.Client.EventsV1().Events(e.Namespace).Create(ctx, e, metav1.CreateOptions{}))
}

// Update implements events.EventSink.
func (s *eventSink) Update(ctx context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	return s.told(s.options.Client.EventsV1().Events(e.Namespace).Update(ctx, e, metav1.UpdateOptions{}))
}

// Patch implements events.EventSink.
func (s *eventSink) Patch(ctx context.Context, e *eventsv1.Event, patch []byte) (*eventsv1.Event, error) {
	return s.told(s.options.Client.EventsV1().Events(e.Namespace).Patch(ctx, e.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}))
}

// uid looks a Service up, by a list because a proxy may not get one. Empty: it
// is not there, or cannot be seen.
func (s *eventSink) uid(ctx context.Context, of corev1.ObjectReference) types.UID {
	list, err := s.options.Client.CoreV1().Services(of.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, of.Name).String(),
	})
	if err != nil {
		return ""
	}
	for i := range list.Items {
		if list.Items[i].Name == of.Name {
			return list.Items[i].UID
		}
	}
	return ""
}

// told logs once that the server refuses Events, until it takes one.
func (s *eventSink) told(e *eventsv1.Event, err error) (*eventsv1.Event, error) {
	switch {
	case err == nil:
		s.refused.Store(false)
	case !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err):
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
	case s.refused.CompareAndSwap(false, true):
		s.options.Log.Warn("The API server refuses Events; nothing else suffers; grant create, patch and update "+
			"on events in events.k8s.io, as the cluster role system:node-proxier does", "error", err)
	}
	return e, err
}
