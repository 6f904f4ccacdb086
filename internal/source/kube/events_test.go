package kube

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	core "k8s.io/client-go/testing"

	"github.com/sluice-proxy/sluice/internal/event"
	"github.com/sluice-proxy/sluice/internal/testing/texttest"
)

// testRecorder is a Recorder that writes to the fake API server of client-go.
type testRecorder struct {
	*Recorder

	t        *testing.T
	server   *fake.Clientset
	log      *texttest.Buffer
	requests atomic.Int32 // requests to write an Event
	result   atomic.Pointer[error]
}

// record returns a Recorder in the synctest bubble of a test.
func record(t *testing.T, objects ...runtime.Object) *testRecorder {
	t.Helper()
	r := &testRecorder{t: t, server: fake.NewClientset(objects...), log: &texttest.Buffer{}}
	r.setResult(nil)
	r.server.PrependReactor("*", "events", func(a core.Action) (bool, runtime.Object, error) {
		if a.GetVerb() == "list" {
			return false, nil, nil
		}
		r.requests.Add(1)
		err := *r.result.Load()
		return err != nil, nil, err
	})
	r.Recorder = NewRecorder(RecorderOptions{
		Client: &Client{
			services: func(ns string) lister { return serviceLister{r.server.CoreV1().Services(ns)} },
			events:   func(ns string) eventAPI { return r.server.EventsV1().Events(ns) },
		},
		NodeName: "n1",
		Log:      slog.New(slog.NewTextHandler(r.log, nil)),
	})
	return r
}

// serviceLister lists Services of client-go's fake.
type serviceLister struct{ typedcorev1.ServiceInterface }

// List implements lister.
func (l serviceLister) List(
	ctx context.Context, o metav1.ListOptions, take func(object) error,
) (metav1.ListMeta, error) {
	list, err := l.ServiceInterface.List(ctx, o)
	if err != nil {
		return metav1.ListMeta{}, err
	}
	return list.ListMeta, meta.EachListItem(list, func(o runtime.Object) error { return take(o.(object)) })
}

// A problem that all nodes find is one Event, from the first node that writes it, after a delay.
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
		if err != nil || len(list.Items) != 1 || r.requests.Load() != 2 {
			t.Errorf("%d Events (%v) after %d requests, want one after two", len(list.Items), err, r.requests.Load())
		}
		// Very many Events are written slowly.
		for i := range 50 {
			e := web
			e.Object.Name = "web" + strings.Repeat("x", i)
			r.Record(e)
		}
		before := r.requests.Load()
		time.Sleep(sharedSpread)
		if n := r.requests.Load() - before; n > sharedBurst+2 {
			t.Errorf("%d requests within %v, want a few", n, sharedSpread)
		}
	})
}

// Nodes may summarize the same conflict with different Services: that is one Event.
func TestCountsOfSeveralNodesAreOneEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := record(t)
		r.run()
		for _, name := range []string{"s17", "s18"} {
			r.Record(event.Event{
				Object: event.Object{Kind: "Service", Namespace: "shop", Name: name}, Type: event.Warning,
				Reason: "ConflictingClaim", Action: "Program",
				Note: "spec.externalIPs: 192.0.2.1:80/tcp: left out, as it belongs to Service shop/s01; " +
					"9996 more such problems in namespace shop, as " + name + " finds",
				Key: "conflicts in shop", Everywhere: true,
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

// Events that are queued at the end are written.
func TestQueuedEventsAreWrittenAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := record(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		r.Record(event.StartFailed(event.FailedToStartMetricServer, errors.New("address already in use")))
		if err := r.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if n := r.requests.Load(); n != 1 {
			t.Errorf("%d Events were written, want the one about the failed start", n)
		}
	})
}

// setResult sets the result of writes of Events; nil: success.
func (r *testRecorder) setResult(err error) { r.result.Store(&err) }

// run runs the Recorder until the test ends.
func (r *testRecorder) run() {
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

// written returns the Events on the server as text.
func (r *testRecorder) written() []string {
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

// wantEvents compares the Events on the server.
func (r *testRecorder) wantEvents(want ...string) {
	r.t.Helper()
	synctest.Wait()
	if d := cmp.Diff(want, r.written()); d != "" {
		r.t.Errorf("events (-want +got):\n%s", d)
	}
}

// An Event has the reason, the object and the reporting program. An Event of a Service has its UID, without which
// kubectl describe does not show it.
func TestEventsAreWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		web := service("web", "10.96.0.1")
		web.UID = "web-uid"
		r := record(t, web, service("db", "10.96.0.2"))
		r.Record(event.Starting()) // queued until Run starts
		r.run()
		r.Record(event.HealthPortFailed("default", "web", errors.New("port 30000 is taken")))
		r.Record(event.HealthPortFailed("default", "gone", errors.New("port 30001 is taken")))
		r.Record(event.Event{
			Object: event.Object{Kind: "EndpointSlice", Namespace: "default", Name: "web-x"}, Type: event.Warning,
			Reason: "InvalidAddress", Action: "Program", Note: "100%d",
		})
		r.wantEvents(
			"Normal Starting StartKubeProxy v1 Node /n1 n1 in default by kube-proxy on n1 ",
			"Warning FailedToStartServiceHealthcheck Listen v1 Service default/gone  in default by kube-proxy on n1 port "+
				"30001 is taken",
			"Warning FailedToStartServiceHealthcheck Listen v1 Service default/web web-uid in default by kube-proxy on n1 "+
				"port 30000 is taken",
			"Warning InvalidAddress Program discovery.k8s.io/v1 EndpointSlice default/web-x  in default by "+
				"kube-proxy on n1 100%d",
		)
	})
}

// Equal Events are written once, with two requests.
func TestEqualEventsAreOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := record(t)
		r.run()
		for range 20 {
			r.Record(event.HealthPortFailed("default", "web", errors.New("port 30000 is taken")))
			synctest.Wait()
		}
		r.wantEvents("Warning FailedToStartServiceHealthcheck Listen v1 Service default/web  in default by kube-proxy on " +
			"n1 port 30000 is taken (again)")
		if n := r.requests.Load(); n != 2 {
			t.Errorf("%d requests, want 2", n)
		}
	})
}

// The count of an Event is updated every few minutes. If it has not occurred for longer,
// the next occurrence is a new Event, even if the first one still exists.
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
				t.Errorf("counts after %d requests (-want +got):\n%s", r.requests.Load(), d)
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
		if n := r.requests.Load(); n != 3 {
			t.Errorf("%d requests, want 3: the first Event, the second, and the count", n)
		}
		r.Record(taken)
		counts(1, 20)
	})
}

// An Event that the server has deleted, as it does after an hour, is created again.
func TestExpiredEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := record(t)
		r.run()
		r.Record(event.Starting())
		synctest.Wait()
		list, err := r.server.EventsV1().Events("default").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 {
			t.Fatalf("%d Events, %v", len(list.Items), err)
		}
		name := list.Items[0].Name
		if err := r.server.EventsV1().Events("default").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		r.Record(event.Starting())
		r.wantEvents("Normal Starting StartKubeProxy v1 Node /n1 n1 in default by kube-proxy on n1  (again)")
	})
}

// Very many Events neither block nor use up the request rate of the watches.
func TestFloodOfEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := record(t)
		r.run()
		for range 10_000 {
			r.Record(event.Event{
				Object: event.Object{Kind: "Service", Namespace: "default", Name: "a"}, Type: event.Warning, Reason: "x",
			})
		}
		synctest.Wait()
		began := time.Now()
		for i := range 1000 {
			r.Record(event.Event{
				Object: event.Object{Kind: "Service", Namespace: "default", Name: string(rune('a' + i%26))},
				Type:   event.Warning, Reason: "y",
			})
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := r.requests.Load(); n > eventBurst+11*eventRate {
			t.Errorf("%d requests in %v, want at most %d", n, time.Since(began), eventBurst+11*eventRate)
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
