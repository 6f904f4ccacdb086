package metrics

import (
	"bytes"
	"context"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/singleflight"
)

// The pause after a rendering is pace times its duration, but at most longestPause:
// however often clients ask, rendering takes a fifth of a CPU at most.
const (
	pace         = 4
	longestPause = 2 * time.Second
)

// page is the http.Handler of a page of metrics. All requests for one form that wait when its rendering begins share
// it, so that many clients cost as much as one. No answer is older than its request.
// Answers are made in memory, so that a slow client does not delay others.
type page struct {
	handler http.Handler // of promhttp
	waiting singleflight.Group

	busy  chan struct{} // held by the goroutine that renders
	after time.Time     // when the next rendering may begin; guarded by busy
}

// answer is a http.ResponseWriter that keeps the response.
type answer struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(code int) { a.code = code }

func (a *answer) Write(p []byte) (int, error) { return a.body.Write(p) }

func serve(from prometheus.Gatherer) http.Handler {
	return &page{busy: make(chan struct{}, 1), handler: promhttp.HandlerFor(from, promhttp.HandlerOpts{
		EnableOpenMetrics: true,
		ErrorHandling:     promhttp.ContinueOnError,
	})}
}

func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	form, plain := formOf(r)
	rendering := p.waiting.DoChan(form, func() (any, error) { return p.render(form, plain), nil })
	select {
	case <-r.Context().Done():
	case done := <-rendering:
		a := done.Val.(*answer)
		maps.Copy(w.Header(), a.header)
		w.Header().Set("Content-Length", strconv.Itoa(a.body.Len()))
		w.WriteHeader(a.code)
		_, _ = w.Write(a.body.Bytes()) // fails if the client closed the connection
	}
}

// render answers a request when a rendering is due, even if its client closed the connection, since others may wait
// for it.
func (p *page) render(form string, r *http.Request) *answer {
	p.busy <- struct{}{}
	defer func() { <-p.busy }()
	time.Sleep(time.Until(p.after))
	p.waiting.Forget(form) // requests from now on are later than this rendering
	began := time.Now()
	a := &answer{header: http.Header{}, code: http.StatusOK}
	p.handler.ServeHTTP(a, r)
	p.after = time.Now().Add(min(pace*time.Since(began), longestPause))
	return a
}

// formOf returns the part of a request that decides what the answer is, the same as text: the accepted formats and
// encodings, and the names of metrics.
func formOf(r *http.Request) (text string, plain *http.Request) {
	plain = (&http.Request{
		Method: http.MethodGet, URL: &url.URL{Path: "/metrics"},
		Header: http.Header{"Accept": r.Header["Accept"], "Accept-Encoding": r.Header["Accept-Encoding"]},
	}).WithContext(context.Background())
	if names := r.URL.Query()["name[]"]; len(names) > 0 {
		plain.URL.RawQuery = url.Values{"name[]": names}.Encode()
	}
	var key strings.Builder
	_ = plain.Header.Write(&key) // a Builder takes everything
	return key.String() + plain.URL.RawQuery, plain
}
