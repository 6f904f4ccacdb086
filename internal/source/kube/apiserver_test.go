package kube

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Paths of the resources that the Source reads.
const (
	servicesPath = "/api/v1/services"
	slicesPath   = "/apis/discovery.k8s.io/v1/endpointslices"
	nodesPath    = "/api/v1/nodes"
	cidrsPath    = "/apis/networking.k8s.io/v1/servicecidrs"
)

// kinds are the kinds that apiServer serves, by path.
var kinds = map[string]metav1.TypeMeta{
	servicesPath: {APIVersion: "v1", Kind: "Service"},
	slicesPath:   {APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
	nodesPath:    {APIVersion: "v1", Kind: "Node"},
	cidrsPath:    {APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDR"},
}

// apiServer lists and watches like an API server: resource versions increase, a watch
// starts after its version, and is refused if the version is too old.
type apiServer struct {
	t    *testing.T
	http *httptest.Server

	protobuf bool // sends lists in protobuf, not in JSON

	mu       sync.Mutex
	version  int
	oldest   int // watches from earlier versions have expired
	objects  map[string]map[string]metav1.Object
	events   map[string][]watchEvent
	woken    chan struct{} // closed at every change
	cut      chan struct{} // closed to end all watches
	refuse   map[string]int
	requests []string
}

type watchEvent struct {
	version int
	kind    string
	object  []byte
}

func newAPIServer(t *testing.T) *apiServer {
	s := &apiServer{
		t: t, version: 1,
		objects: map[string]map[string]metav1.Object{}, events: map[string][]watchEvent{}, refuse: map[string]int{},
		woken: make(chan struct{}), cut: make(chan struct{}),
	}
	s.http = httptest.NewServer(s)
	t.Cleanup(func() {
		s.cutOff()
		s.http.Close()
	})
	return s
}

func (s *apiServer) client() *Client {
	s.t.Helper()
	return clientOf(s.t, s.http.URL)
}

func clientOf(t testing.TB, url string) *Client {
	t.Helper()
	c, _ := countedClientOf(t, url)
	return c
}

// countedClientOf returns a client and the number of requests that it has started.
func countedClientOf(t testing.TB, url string) (*Client, *requestCount) {
	t.Helper()
	r := &requestCount{}
	config := &rest.Config{Host: url, QPS: 1000, Burst: 1000}
	config.Wrap(r.count)
	c, err := NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	return c, r
}

type requestCount struct{ started atomic.Int32 }

func (r *requestCount) count(next http.RoundTripper) http.RoundTripper {
	return roundTrip(func(req *http.Request) (*http.Response, error) {
		r.started.Add(1)
		return next.RoundTrip(req)
	})
}

// reach waits until n requests have started.
func (r *requestCount) reach(t testing.TB, n int) {
	t.Helper()
	waitFor(t, func() string {
		if started := int(r.started.Load()); started < n {
			return fmt.Sprintf("%d of %d requests", started, n)
		}
		return ""
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// waitFor waits until missing returns an empty text.
func waitFor(t testing.TB, missing func() string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		what := missing()
		if what == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after 30 s: %s", what)
		}
	}
}

// set adds or changes an object and notifies the watches.
func (s *apiServer) set(path string, obj metav1.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := obj.GetNamespace() + "/" + obj.GetName()
	kind := "MODIFIED"
	if s.objects[path] == nil {
		s.objects[path] = map[string]metav1.Object{}
	}
	if s.objects[path][key] == nil {
		kind = "ADDED"
	}
	s.objects[path][key] = obj
	s.emit(path, kind, obj)
}

func (s *apiServer) remove(path, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	obj := s.objects[path][key]
	delete(s.objects[path], key)
	s.emit(path, "DELETED", obj)
}

func (s *apiServer) emit(path, kind string, obj metav1.Object) {
	s.version++
	obj.SetResourceVersion(strconv.Itoa(s.version))
	s.events[path] = append(s.events[path], watchEvent{s.version, kind, encode(path, obj)})
	close(s.woken)
	s.woken = make(chan struct{})
}

// encode returns an object as JSON with its apiVersion and kind.
func encode(path string, obj any) []byte {
	b, _ := json.Marshal(obj)
	m := map[string]any{}
	_ = json.Unmarshal(b, &m)
	m["apiVersion"], m["kind"] = kinds[path].APIVersion, kinds[path].Kind
	b, _ = json.Marshal(m)
	return b
}

// cutOff ends all watches.
func (s *apiServer) cutOff() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.cut)
	s.cut = make(chan struct{})
}

// expire makes watches from earlier versions fail.
func (s *apiServer) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.oldest = s.version
}

// setStatus makes requests of a path fail with a status; 0: no longer.
func (s *apiServer) setStatus(path string, status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse[path] = status
}

func (s *apiServer) requestLog() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.requests...)
}

// waitForRequests waits until each path has been requested n times.
func (s *apiServer) waitForRequests(n int, paths ...string) {
	s.t.Helper()
	waitFor(s.t, func() string {
		requests := s.requestLog()
		for _, path := range paths {
			count := 0
			for _, request := range requests {
				if strings.HasPrefix(request, path+" ") {
					count++
				}
			}
			if count < n {
				return fmt.Sprintf("%d of %d requests for %s", count, n, path)
			}
		}
		return ""
	})
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	s.mu.Lock()
	s.requests = append(s.requests,
		fmt.Sprintf("%s %s %s", r.URL.Path, query.Get("labelSelector"), query.Get("fieldSelector")))
	status := s.refuse[r.URL.Path]
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case status != 0:
		fail(w, status)
	case query.Get("watch") == "":
		s.list(w, r.URL.Path)
	case query.Get("sendInitialEvents") == "":
		from, _ := strconv.Atoi(query.Get("resourceVersion"))
		s.watch(w, r, from)
	default:
		fail(w, http.StatusUnprocessableEntity) // like servers without WatchList
	}
}

func fail(w http.ResponseWriter, status int) {
	reason := map[int]metav1.StatusReason{
		http.StatusNotFound: metav1.StatusReasonNotFound, http.StatusForbidden: metav1.StatusReasonForbidden,
		http.StatusUnauthorized: metav1.StatusReasonUnauthorized,
		http.StatusGone:         metav1.StatusReasonExpired, http.StatusUnprocessableEntity: metav1.StatusReasonInvalid,
	}[status]
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Code: int32(status), Reason: reason, Message: "set by the test",
	})
}

func (s *apiServer) list(w http.ResponseWriter, path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.protobuf {
		_, _ = w.Write(protobufList(s.t, path, s.version, slices.Collect(maps.Values(s.objects[path]))...))
		return
	}
	var items []string
	for _, obj := range s.objects[path] {
		items = append(items, string(encode(path, obj)))
	}
	fmt.Fprintf(w, `{"apiVersion":%q,"kind":"%sList","metadata":{"resourceVersion":"%d"},"items":[%s]}`,
		kinds[path].APIVersion, kinds[path].Kind, s.version, strings.Join(items, ","))
}

func (s *apiServer) watch(w http.ResponseWriter, r *http.Request, from int) {
	s.mu.Lock()
	expired, cut := from < s.oldest, s.cut
	s.mu.Unlock()
	if expired {
		fail(w, http.StatusGone)
		return
	}
	for {
		s.mu.Lock()
		woken := s.woken
		for _, e := range s.events[r.URL.Path] {
			if e.version > from {
				fmt.Fprintf(w, `{"type":%q,"object":%s}`+"\n", e.kind, e.object)
				from = e.version
			}
		}
		s.mu.Unlock()
		w.(http.Flusher).Flush()
		select {
		case <-woken:
		case <-cut:
			return
		case <-r.Context().Done():
			return
		}
	}
}
