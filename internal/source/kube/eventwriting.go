package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
)

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

// eventWriting writes Events, one after the other.
type eventWriting struct {
	options RecorderOptions
	recent  map[eventKey]*counted
	refused bool // the server refused the last Event, which is logged
}

func newEventWriting(o RecorderOptions) *eventWriting {
	return &eventWriting{options: o, recent: map[eventKey]*counted{}}
}

// take writes an Event, or counts it: of equal ones the first two are written. It reports whether it wrote.
func (w *eventWriting) take(ctx context.Context, e *eventsv1.Event) bool {
	key := eventKey{e.Type, e.Reason, e.Action, e.Regarding}
	c := w.recent[key]
	switch {
	case c == nil:
		c = &counted{event: e}
		w.recent[key] = c
	case c.event.Series == nil:
		c.event.Series = &eventsv1.EventSeries{Count: 2, LastObservedTime: e.EventTime}
	default:
		c.event.Series.Count++
		c.event.Series.LastObservedTime = e.EventTime
		return false
	}
	w.write(ctx, c)
	return true
}

// writeCounts writes the counts that the server lacks, and forgets Events not repeated within eventSeries.
func (w *eventWriting) writeCounts(ctx context.Context) {
	for key, c := range w.recent {
		last := c.event.EventTime
		if s := c.event.Series; s != nil {
			last = s.LastObservedTime
			if s.Count != c.written {
				w.write(ctx, c)
			}
		}
		if time.Since(last.Time) > eventSeries {
			delete(w.recent, key)
		}
	}
}

// write writes an Event until the server has it or refuses it.
func (w *eventWriting) write(ctx context.Context, c *counted) {
	for range eventTries {
		again := w.attempt(ctx, c.event.DeepCopy())
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
func (w *eventWriting) attempt(ctx context.Context, e *eventsv1.Event) (again bool) {
	api := w.options.Client.events(e.Namespace)
	var err error
	if e.Series != nil {
		_, err = api.Patch(ctx, e.Name, types.StrategicMergePatchType, seriesPatch(e.Series), metav1.PatchOptions{})
	}
	if e.Series == nil || apierrors.IsNotFound(err) {
		if e.Regarding.Kind == "Service" && e.Regarding.UID == "" {
			e.Regarding.UID = w.uid(ctx, e.Regarding) // kubectl describe selects by it
		}
		_, err = api.Create(ctx, e, metav1.CreateOptions{})
	}
	if apierrors.IsAlreadyExists(err) {
		err = nil // another node was faster
	}
	w.logRefusal(err)
	return err != nil && apierrors.ReasonForError(err) == metav1.StatusReasonUnknown // no server answered
}

func seriesPatch(s *eventsv1.EventSeries) []byte {
	at, _ := json.Marshal(s.LastObservedTime) // a time always can be
	return fmt.Appendf(nil, `{"series":{"count":%d,"lastObservedTime":%s}}`, s.Count, at)
}

// uid lists to find the UID of a Service, as a proxy may not get one. Empty: the Service is not visible.
func (w *eventWriting) uid(ctx context.Context, of corev1.ObjectReference) types.UID {
	var uid types.UID
	_, err := w.options.Client.services(of.Namespace).List(ctx, metav1.ListOptions{
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
func (w *eventWriting) logRefusal(err error) {
	log := w.options.Log
	switch {
	case err == nil:
		w.refused = false
	case !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err),
		apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		log.Debug("Cannot write an Event", slog.Any("error", err))
	case !w.refused:
		w.refused = true
		log.Warn("The API server refuses Events; nothing else suffers; grant create, patch and update "+
			"on events in events.k8s.io, as the cluster role system:node-proxier does", "error", err)
	}
}
