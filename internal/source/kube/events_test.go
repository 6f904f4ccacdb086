package kube

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	core "k8s.io/client-go/testing"

	"github.com/sluice-proxy/sluice/internal/event"
	"github.com/sluice-proxy/sluice/internal/text/texttest"
)

// recording is a Recorder at work on client-go's own fake of an API server.
type recording struct {
	*Recorder

	t      *testing.T
	server *fake.Clientset
	log    *texttest.Buffer
	asked  atomic.Int32 // to write an Event
	answer atomic.Pointer[error]
}

// record starts a Recorder in the bubble of a test.
func record(t *testing.T, objects ...runtime.Object) *recording {
	t.Helper()
	r := &recording{t: t, server: fake.NewClientset(objects...), log: &texttest.Buffer{}}
	r.answers(nil)
	r.server.PrependReactor("*", "events", func(a core.Action) (bool, runtime.Object, error) {
		if a.GetVerb() == "list" {
			return false, nil, nil
		}
		r.asked.Add(1)
		err := *r.answer.Load()
		return err != nil, nil, err
	})
	r.Recorder = NewRecorder(RecorderOptions{
		Client: &Client{
			services: func(ns string) lister[*corev1.ServiceList] { return r.server.CoreV1().Services(ns) },
			events:   func(ns string) eventAPI { return r.server.EventsV1().Events(ns) },
		},
		NodeName: "n1",
		Log:      slog.New(slog.NewTextHandler(r.log, nil)),
	})
	return r
}

// What all nodes find is one Event, whoever is first, and not at once.
func TestAProblemFoundByAllNodesIsOneEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := record(t)
		r.run()
		other := NewRecorder(RecorderOptions{Client: r.options.Client, NodeName: "n2"})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = other.Run(ctx) }()
		web := event.Event{
			Object: event.Object{Kind: "Service", Namespace: "default", Name: "web"}, Type: event.Warning,
			Reason: "InvalidAddress", Action: "Program", Note: "spec.externalIPs[0]: 1.2.3", Everywhere: true,
		}
		r.Record(web)
		other.Record(web)
		time.Sleep(sharedSpread + time.Second)
		synctest.Wait()
		list, err := r.server.EventsV1().Events("default").List(ctx, metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 || r.asked.Load() != 2 {
			t.Errorf("%d Events (%v) after %d requests, want one after two", len(list.Items), err, r.asked.Load())
		}
		// Very many come slowly.
		for i := range 50 {
			e := web
			e.Object.Name = "web" + strings.Repeat("x", i)
			r.Record(e)
		}
		before := r.asked.Load()
		time.Sleep(sharedSpread)
		if n := r.asked.Load() - before; n > sharedBurst+2 {
			t.Errorf("%d requests within %v, want a few", n, sharedSpread)
		}
	})
}

// Nodes may count different Services that ask for the same: that is one Event.
func TestCountsOfSeveralNodesAreOneEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := record(t)
		r.run()
		for _, name := range []string{"s17", "s18"} {
			r.Record(event.Event{
				Object: event.Object{Kind: "Service", Namespace: "shop", Name: name}, Type: event.Warning, Reason: "ConflictingClaim", Action: "Program",
				Note: "spec.externalIPs: 192.0.2.1:80/tcp: left out, as it belongs to Service shop/s01; 9996 more such problems in namespace shop, as " + name + " finds",
				Name: "conflicts in shop", Everywhere: true,
			})
			time.Sleep(sharedSpread + time.Second)
		}
		synctest.Wait()
		list, err := r.server.EventsV1().Events("shop").List(r.t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 || !strings.HasPrefix(list.Items[0].Name, "repeated.") {
			t.Errorf("%d Events (%v), want one: %+v", len(list.Items), err, list.Items)
		}
	})
}

// The last words of a program are heard.
func TestQueuedEventsAreWrittenAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := record(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		r.Record(event.StartFailed(event.FailedToStartMetricServer, errors.New("address already in use")))
		if err := r.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if n := r.asked.Load(); n != 1 {
			t.Errorf("%d Events were written, want the one that says why", n)
		}
	})
}

// answers says how the server answers to an Event; nil: it takes it.
func (r *recording) answers(err error) { r.answer.Store(&err) }

// run runs the Recorder until the test ends.
func (r *recording) run() {
	ctx, cancel := context.WithCancel(r.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	r.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			r.t.Errorf("Run: %v", err)
		}
		synctest.Wait()
	})
}

// written returns the Events that the server has, as far as people see them.
func (r *recording) written() []string {
	r.t.Helper()
	list, err := r.server.EventsV1().Events("").List(r.t.Context(), metav1.ListOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	var out []string
	for i := range list.Items {
		out = append(out, eventText(&list.Items[i]))
	}
	slices.Sort(out)
	return out
}

func eventText(e *eventsv1.Event) string {
	on := e.Regarding
	text := strings.Join([]string{
		e.Type, e.Reason, e.Action, on.APIVersion, on.Kind, on.Namespace + "/" + on.Name, string(on.UID),
		"in " + e.Namespace, "by " + e.ReportingController + " on " + e.ReportingInstance, e.Note,
	}, " ")
	if e.Series != nil && e.Series.Count > 1 {
		text += " (again)"
	}
	return text
}

func (r *recording) wrote(want ...string) {
	r.t.Helper()
	synctest.Wait()
	if d := cmp.Diff(want, r.written()); d != "" {
		r.t.Errorf("events (-want +got):\n%s", d)
	}
}

// Events say what, about which object, and who says so; a Service by its UID,
// without which kubectl describe does not find them.
func TestEventsArrive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		web := service("web", "10.96.0.1")
		web.UID = "web-uid"
		r := record(t, web, service("db", "10.96.0.2"))
		r.Record(event.Starting()) // kept until somebody brings it there
		r.run()
		r.Record(event.HealthPortFailed("default", "web", errors.New("port 30000 is taken")))
		r.Record(event.HealthPortFailed("default", "gone", errors.New("port 30001 is taken")))
		r.Record(event.Event{Object: event.Object{Kind: "EndpointSlice", Namespace: "default", Name: "web-x"}, Type: event.Warning, Reason: "InvalidAddress", Action: "Program", Note: "100%d"})
		r.wrote(
			"Normal Starting StartKubeProxy v1 Node /n1 n1 in default by kube-proxy on n1 ",
			"Warning FailedToStartServiceHealthcheck Listen v1 Service default/gone  in default by kube-proxy on n1 port 30001 is taken",
			"Warning FailedToStartServiceHealthcheck Listen v1 Service default/web web-uid in default by kube-proxy on n1 port 30000 is taken",
			"Warning InvalidAddress Program discovery.k8s.io/v1 EndpointSlice default/web-x  in default by kube-proxy on n1 100%d",
		)
	})
}

// What happens again and again is one Event, and two requests.
func TestEqualEventsAreOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := record(t)
		r.run()
		for range 20 {
			r.Record(event.HealthPortFailed("default", "web", errors.New("port 30000 is taken")))
			synctest.Wait()
		}
		r.wrote("Warning FailedToStartServiceHealthcheck Listen v1 Service default/web  in default by kube-proxy on n1 port 30000 is taken (again)")
		if n := r.asked.Load(); n != 2 {
			t.Errorf("%d requests, want 2", n)
		}
	})
}

// How often it happened is told every few minutes while it goes on. What has not
// happened for longer is news when it comes again, also if the first Event is
// still there.
func TestEventsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := record(t)
		r.run()
		taken := event.HealthPortFailed("default", "web", errors.New("port 30000 is taken"))
		counts := func(want ...int32) {
			t.Helper()
			synctest.Wait()
			list, err := r.server.EventsV1().Events("default").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var got []int32
			for _, e := range list.Items {
				got = append(got, 1)
				if e.Series != nil {
					got[len(got)-1] = e.Series.Count
				}
			}
			slices.Sort(got)
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("counts after %d requests (-want +got):\n%s", r.asked.Load(), d)
			}
		}
		for range 20 {
			r.Record(taken)
			time.Sleep(time.Second)
		}
		counts(2)
		time.Sleep(eventSeries)
		counts(20)
		time.Sleep(2 * eventSeries)
		if n := r.asked.Load(); n != 3 {
			t.Errorf("%d requests, want 3: the first, the second, and how many there were", n)
		}
		r.Record(taken)
		counts(1, 20)
	})
}

// An Event that the server has forgotten, as it does after an hour, is made
// again.
func TestForgottenEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := record(t)
		r.run()
		r.Record(event.Starting())
		synctest.Wait()
		list, err := r.server.EventsV1().Events("default").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 {
			t.Fatalf("%d Events, %v", len(list.Items), err)
		}
		if err := r.server.EventsV1().Events("default").Delete(t.Context(), list.Items[0].Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		r.Record(event.Starting())
		r.wrote("Normal Starting StartKubeProxy v1 Node /n1 n1 in default by kube-proxy on n1  (again)")
	})
}

// A flood of Events neither blocks nor takes the client from those who watch.
func TestFloodOfEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := record(t)
		r.run()
		for range 10_000 {
			r.Record(event.Event{Object: event.Object{Kind: "Service", Namespace: "default", Name: "a"}, Type: event.Warning, Reason: "x"})
		}
		synctest.Wait()
		began := time.Now()
		for i := range 1000 {
			r.Record(event.Event{Object: event.Object{Kind: "Service", Namespace: "default", Name: string(rune('a' + i%26))}, Type: event.Warning, Reason: "y"})
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := r.asked.Load(); n > eventBurst+11*eventRate {
			t.Errorf("%d requests in %v, want at most %d", n, time.Since(began), eventBurst+11*eventRate)
		}
	})
}

// Where Events are forbidden that is said once, and everything else goes on.
func TestForbiddenEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := record(t)
		forbidden := apierrors.NewForbidden(schema.GroupResource{Group: "events.k8s.io", Resource: "events"}, "", errors.New("no RBAC policy"))
		r.answers(forbidden)
		r.run()
		for _, name := range []string{"a", "b", "c"} {
			r.Record(event.HealthPortFailed("default", name, errors.New("taken")))
			synctest.Wait()
		}
		said := r.log.String()
		if strings.Count(said, "\n") != 1 || !strings.Contains(said, "refuses Events") || !strings.Contains(said, "no RBAC policy") {
			t.Errorf("the log says:\n%s", said)
		}
		r.wrote()

		r.answers(nil) // rights were granted, and taken again
		r.Record(event.Starting())
		synctest.Wait()
		r.answers(forbidden)
		r.Record(event.HealthPortFailed("default", "d", errors.New("taken")))
		r.wrote("Normal Starting StartKubeProxy v1 Node /n1 n1 in default by kube-proxy on n1 ")
		if n := strings.Count(r.log.String(), "\n"); n != 2 {
			t.Errorf("%d lines in the log, want 2:\n%s", n, r.log)
		}
	})
}

// A Service of a namespace that goes away may have problems; nobody needs to
// know that they cannot be told.
func TestEventsOfANamespaceThatGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := record(t)
		r.answers(&apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "NamespaceTerminating"}}},
		}})
		r.run()
		r.Record(event.HealthPortFailed("default", "web", errors.New("taken")))
		synctest.Wait()
		if said := r.log.String(); said != "" || r.asked.Load() != 1 {
			t.Errorf("%d requests; the log says:\n%s", r.asked.Load(), said)
		}
	})
}

// An outage only delays Events.
func TestEventsOutlastAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := record(t)
		r.answers(errors.New("connection refused"))
		r.run()
		r.Record(event.Starting())
		time.Sleep(30 * time.Second)
		synctest.Wait()
		r.answers(nil)
		time.Sleep(30 * time.Second)
		r.wrote("Normal Starting StartKubeProxy v1 Node /n1 n1 in default by kube-proxy on n1 ")
		if said := r.log.String(); said != "" {
			t.Errorf("the log says:\n%s", said)
		}
	})
}

func TestCut(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"", ""},
		{"0123456789", "0123456789"},
		{"0123456789a", "0123456…"},
		{"012345äöü", "012345…"},
		{"ääääää", "äää…"},
	} {
		got := cut(tt.text, 10)
		if got != tt.want || len(got) > 10 {
			t.Errorf("cut(%q) = %q of %d bytes, want %q", tt.text, got, len(got), tt.want)
		}
	}
}
