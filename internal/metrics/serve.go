package metrics

import (
	"bytes"
	"context"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/expfmt"
)

// The pause after a rendering is pace times its duration, but at most longestPause:
// however often clients ask, rendering takes a fifth of a CPU at most.
const (
	pace         = 4
	longestPause = 2 * time.Second
)

// page is a page of metrics. All requests that wait when a rendering begins share
// it, so that many clients cost as much as one. No answer is older than its request.
// Answers are made in memory, so that a slow client does not delay others.
type page struct {
	handler http.Handler // of promhttp

	busy  chan struct{} // held by the goroutine that renders
	after time.Time     // when the next rendering may begin; guarded by busy

	mu   sync.Mutex
	next *rendering // that has not begun; nil: no request waits
}

// rendering is the page at one moment, in every requested form.
type rendering struct {
	asked map[form]bool
	done  chan struct{} // closed when made is complete
	made  map[form]*answer
}

// form is the encoding and selection of a request.
type form struct {
	format   expfmt.Format
	encoding string // "gzip", "identity"
	names    string // the names in the query; empty: all
}

// answer is a http.ResponseWriter that keeps the response.
type answer struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(code int) { a.code = code }

// Write implements http.ResponseWriter.
func (a *answer) Write(p []byte) (int, error) { return a.body.Write(p) }

func serve(from prometheus.Gatherer) http.Handler {
	return &page{busy: make(chan struct{}, 1), handler: promhttp.HandlerFor(from, promhttp.HandlerOpts{
		EnableOpenMetrics: true,
		ErrorHandling:     promhttp.ContinueOnError,
	})}
}

// ServeHTTP implements http.Handler.
func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f := formOf(r)
	rendering, first := p.join(f)
	if first {
		p.render(rendering)
	}
	select {
	case <-r.Context().Done():
		return
	case <-rendering.done:
	}
	a := rendering.made[f]
	maps.Copy(w.Header(), a.header)
	w.Header().Set("Content-Length", strconv.Itoa(a.body.Len()))
	w.WriteHeader(a.code)
	_, _ = w.Write(a.body.Bytes()) // fails if the client closed the connection
}

// join adds a request to the next rendering. The first request must render it.
func (p *page) join(f form) (r *rendering, first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next == nil {
		p.next, first = &rendering{asked: map[form]bool{}, done: make(chan struct{}), made: map[form]*answer{}}, true
	}
	p.next.asked[f] = true
	return p.next, first
}

// render makes a rendering when it is due, even if its client closed the connection, since others may wait for it.
func (p *page) render(r *rendering) {
	p.busy <- struct{}{}
	defer func() { <-p.busy }()
	time.Sleep(time.Until(p.after))
	p.mu.Lock()
	p.next = nil // requests from now on are later than this rendering
	p.mu.Unlock()
	began := time.Now()
	for f := range r.asked {
		r.made[f] = p.make(f)
	}
	p.after = time.Now().Add(min(pace*time.Since(began), longestPause))
	close(r.done)
}

// make renders one form.
func (p *page) make(f form) *answer {
	a := &answer{header: http.Header{}, code: http.StatusOK}
	r := (&http.Request{
		Method: http.MethodGet, URL: &url.URL{Path: "/metrics", RawQuery: f.names},
		Header: http.Header{"Accept": {string(f.format)}, "Accept-Encoding": {f.encoding}},
	}).WithContext(context.Background())
	p.handler.ServeHTTP(a, r)
	return a
}

func formOf(r *http.Request) form {
	f := form{format: expfmt.NegotiateIncludingOpenMetrics(r.Header), encoding: "identity"}
	if acceptsGzip(r.Header.Values("Accept-Encoding")) {
		f.encoding = "gzip"
	}
	if names := r.URL.Query()["name[]"]; len(names) > 0 {
		f.names = url.Values{"name[]": names}.Encode()
	}
	return f
}

// acceptsGzip reports whether a client names gzip, with a weight above 0.
func acceptsGzip(header []string) bool {
	for part := range strings.SplitSeq(strings.Join(header, ","), ",") {
		coding, weight, weighted := strings.Cut(part, ";")
		if strings.TrimSpace(coding) != "gzip" {
			continue
		}
		_, q, _ := strings.Cut(weight, "=")
		n, err := strconv.ParseFloat(strings.TrimSpace(q), 64)
		return !weighted || err == nil && n > 0
	}
	return false
}
