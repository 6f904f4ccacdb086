//go:build linux

package fetch

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// apiServer refuses the first request, and then has two pages of three Services each.
type apiServer struct {
	t *testing.T

	mu      sync.Mutex
	queries []string
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Header.Get("Accept") != contentType || r.Header.Get("Accept-Encoding") != "" {
		s.t.Errorf("the headers are %v", r.Header)
	}
	s.queries = append(s.queries, r.URL.RawQuery)
	next := map[string]string{"": "more"}[r.URL.Query().Get("continue")]
	switch {
	case len(s.queries) == 1:
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(http.StatusTooManyRequests)
	default:
		_, _ = w.Write(encode(s.t, list(next, 3)))
	}
}

// A client follows pages, and repeats a refused request.
func TestPages(t *testing.T) {
	s := &apiServer{t: t}
	server := httptest.NewServer(s)
	defer server.Close()
	d, err := NewDrain(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	got, err := d.pages(t.Context(), "/api/v1/services", metav1.ListOptions{LabelSelector: "!a", Limit: 3})
	if err != nil || got != 6 || d.Refused() != 1 || d.Bytes() == 0 {
		t.Errorf("got %d objects, %v, %d refused, %d bytes", got, err, d.Refused(), d.Bytes())
	}
	first := "labelSelector=%21a&limit=3"
	if diff := cmp.Diff([]string{first, first, "continue=more&" + first}, s.queries); diff != "" {
		t.Errorf("the requests differ (-want, +got):\n%s", diff)
	}
}

func TestErrorOfTheServer(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	d, err := NewDrain(&rest.Config{Host: server.URL + "/"})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range Methods() {
		if _, err := d.All(t.Context(), m); err == nil || !strings.Contains(err.Error(), m.Name+" of ") || !strings.Contains(err.Error(), "404") {
			t.Errorf("%s: %v", m.Name, err)
		}
	}
}

func TestInitialEvents(t *testing.T) {
	end := watch.Event{Type: watch.Bookmark, Object: service(map[string]string{metav1.InitialEventsAnnotationKey: "true"})}
	added := watch.Event{Type: watch.Added, Object: service(nil)}
	for _, test := range []struct {
		name, problem string
		events        []watch.Event
	}{
		{"complete", "", []watch.Event{added, {Type: watch.Bookmark, Object: service(nil)}, added, end}},
		{"cut off", "before the bookmark", []watch.Event{added, added}},
		{"an error", "after 2 objects there was an event ERROR", []watch.Event{added, added, {Type: watch.Error}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			events := make(chan watch.Event, len(test.events))
			for _, e := range test.events {
				events <- e
			}
			close(events)
			got, err := initial(events)
			if got != 2 || (test.problem == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), test.problem) {
				t.Errorf("got %d, %v, want 2 and %q", got, err, test.problem)
			}
		})
	}
}

// The CPU time of this process grows while it computes, and at most as fast as it can.
func TestMeasure(t *testing.T) {
	const enough = 20 * time.Millisecond
	cost, err := Measure(0, func() error {
		before, err := CPU(0)
		for now := before; err == nil && now-before < enough; {
			now, err = CPU(0)
		}
		return err
	})
	if err != nil || cost.Client < enough || cost.Server < enough || cost.Took <= 0 {
		t.Errorf("got %+v, %v, want at least %v", cost, err, enough)
	}
	if _, err := CPU(1 << 28); err == nil {
		t.Error("a process that is not there has a CPU time")
	}
}

func TestMedian(t *testing.T) {
	got := Median([]Cost{{3, 10, 200}, {1, 30, 100}, {2, 20, 300}})
	if want := (Cost{2, 20, 200}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}
