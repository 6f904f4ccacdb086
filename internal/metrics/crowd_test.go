package metrics

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
)

// slow is a gatherer that takes 10 ms, and counts.
type slow struct {
	registry *prometheus.Registry
	times    atomic.Int64
}

func (s *slow) Gather() ([]*dto.MetricFamily, error) {
	s.times.Add(1)
	time.Sleep(10 * time.Millisecond)
	return s.registry.Gather()
}

// Three hundred clients at once are answered by two renderings: one for the first client,
// and one for all that ask during it.
func TestConcurrentClientsShareARendering(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := &slow{registry: newMetrics().registry}
		page := serve(from)
		var clients sync.WaitGroup
		for range 300 {
			clients.Go(func() {
				w := httptest.NewRecorder()
				page.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
				if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "sluice_") {
					t.Errorf("got %d with %d bytes", w.Code, w.Body.Len())
				}
			})
		}
		clients.Wait()
		if n := from.times.Load(); n > 2 {
			t.Errorf("%d renderings for 300 clients at once, want 2 at most", n)
		}
	})
}

// A client that asks again at once waits: rendering takes a fifth of a CPU.
func TestRenderingIsPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := &slow{registry: newMetrics().registry}
		page := serve(from)
		began := time.Now()
		for range 101 {
			page.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/metrics", nil))
		}
		if took := time.Since(began); took < 100*50*time.Millisecond {
			t.Errorf("101 renderings of 10 ms came within %v, want 5 s at least", took)
		}
	})
}

// No answer is older than its request.
func TestAnswersAreNotOlderThanRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counted := prometheus.NewCounter(prometheus.CounterOpts{Name: "counted"})
		registry := prometheus.NewRegistry()
		registry.MustRegister(counted)
		page := serve(&slow{registry: registry})
		for i, want := range []string{"counted 1\n", "counted 2\n", "counted 3\n"} {
			counted.Inc()
			w := httptest.NewRecorder()
			page.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
			if !strings.Contains(w.Body.String(), want) {
				t.Errorf("request %d: got %q, want %q in it", i, w.Body.String(), want)
			}
		}
	})
}

// A client that never reads does not delay answers to others.
func TestAClientThatNeverReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		page := serve(newMetrics().registry)
		stuck := make(chan struct{})
		for range 10 {
			go page.ServeHTTP(unread{httptest.NewRecorder(), stuck}, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		}
		synctest.Wait()
		w := httptest.NewRecorder()
		page.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		if w.Code != http.StatusOK {
			t.Errorf("got %d", w.Code)
		}
		close(stuck)
	})
}

// unread is a connection whose client does not read.
type unread struct {
	*httptest.ResponseRecorder

	until chan struct{}
}

func (u unread) Write(p []byte) (int, error) {
	<-u.until
	return u.ResponseRecorder.Write(p)
}

// Shared answers are equal to answers of promhttp, byte by byte.
func TestSharedAnswersAreThoseOfPromhttp(t *testing.T) {
	registry := prometheus.NewRegistry()
	for _, name := range []string{"one", "two"} {
		registry.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: "A counter."}))
	}
	page := serve(registry)
	plain := promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true})
	for _, accept := range []string{
		"", "*/*", "text/plain", "nonsense", "text/html", "application/openmetrics-text",
		"application/openmetrics-text; version=1.0.0", "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;q=0.6",
		"application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6," +
			"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.5",
		"application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=text",
		"application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=compact-text; escaping=dots",
	} {
		for _, encoding := range []string{"", "gzip", "gzip;q=0", "br, gzip;q=0.5", "identity", "*"} {
			for _, query := range []string{"", "?name[]=two", "?name[]=none&x=y"} {
				got, want := httptest.NewRecorder(), httptest.NewRecorder()
				for w, h := range map[*httptest.ResponseRecorder]http.Handler{got: page, want: plain} {
					r := httptest.NewRequest(http.MethodGet, "/metrics"+query, nil)
					r.Header.Set("Accept", accept)
					if encoding != "" {
						r.Header.Set("Accept-Encoding", encoding)
					}
					h.ServeHTTP(w, r)
				}
				if got.Code != want.Code || got.Header().Get("Content-Type") != want.Header().Get("Content-Type") ||
					text(t, got) != text(t, want) {
					t.Errorf("Accept %q, Accept-Encoding %q, %q:\ngot  %d %s\n%s\nwant %d %s\n%s", accept, encoding, query,
						got.Code, got.Header(), text(t, got), want.Code, want.Header(), text(t, want))
				}
				if encoding == "gzip;q=0" && got.Header().Get("Content-Encoding") != "" {
					t.Errorf("a client that refuses gzip gets %s", got.Header())
				}
			}
		}
	}
}

// text returns the body after decompression.
func text(t *testing.T, w *httptest.ResponseRecorder) string {
	t.Helper()
	if w.Header().Get("Content-Encoding") != "gzip" {
		return w.Body.String()
	}
	r, err := gzip.NewReader(strings.NewReader(w.Body.String()))
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}
