package kube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/sluice-proxy/sluice/internal/testing/texttest"
	"github.com/sluice-proxy/sluice/test/machine"
)

// unstable matches the parts of a log line that differ between runs.
var unstable = regexp.MustCompile(`time=\S+ level=|msg=| error=("([^"\\]|\\.)*"|\S+)`)

// logLines returns the lines of the log without times and errors.
func (f *testSource) logLines() []string {
	return slices.Collect(strings.Lines(unstable.ReplaceAllString(f.log.String(), "")))
}

func lines(want ...string) []string {
	ended := make([]string, len(want))
	for i, line := range want {
		ended[i] = line + "\n"
	}
	return ended
}

// wantLog waits until the log has exactly these lines.
func (f *testSource) wantLog(want ...string) {
	f.t.Helper()
	f.until(func() string { return cmp.Diff(lines(want...), f.logLines()) })
}

// port is a local TCP port with or without a server.
type port struct {
	t       *testing.T
	address string
	serving *httptest.Server
}

func closedPort(t *testing.T) *port {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return &port{t: t, address: l.Addr().String()}
}

func (p *port) url() string { return "http://" + p.address }

func (p *port) open(h http.Handler) {
	p.t.Helper()
	l, err := net.Listen("tcp", p.address)
	if err != nil {
		p.t.Fatal(err)
	}
	p.serving = &httptest.Server{Listener: l, Config: &http.Server{Handler: h}}
	p.serving.Start()
	p.t.Cleanup(p.close)
}

// close stops the server and closes its connections, like a kill.
func (p *port) close() {
	p.serving.Listener.Close()
	p.serving.CloseClientConnections()
}

// someRequests is a number of requests of one kind after which at least two lists have
// failed: a list takes one request, or two if it is first requested as a stream.
const someRequests = 5

func TestOutageIsReportedOnce(t *testing.T) {
	testEncodings(t, testOutage)
}

func testOutage(t *testing.T, api *apiServer) {
	t.Helper()
	api.set(servicesPath, service("web", "10.96.0.1"))
	p := closedPort(t)
	client, requests := countedClientOf(t, p.url())
	f := startWith(t, client)
	lost := fmt.Sprintf(`WARN %q server=%s`, unreachable.text(), p.url())
	back := `INFO "The API server answers again" server=` + p.url()
	requests.reach(t, len(kinds)+4) // one for each kind, and retries of one kind
	f.wantLog(lost)
	if !strings.Contains(f.log.String(), "connection refused") {
		t.Errorf("the log lacks the reason:\n%s", f.log)
	}
	p.open(api)
	f.ready()
	f.wantLog(lost, back)

	p.close()
	f.wantLog(lost, back, lost)
	p.open(api)
	f.wantLog(lost, back, lost, back)
	api.set(servicesPath, service("db", "10.96.0.2"))
	f.waitFor(map[string]string{"default/web": "[10.96.0.1] []", "default/db": "[10.96.0.2] []"})
	f.stop()
	f.wantLog(lost, back, lost, back)
}

func TestRefusalIsReportedOncePerKind(t *testing.T) {
	api := newAPIServer(t)
	for _, path := range []string{servicesPath, slicesPath} {
		api.setStatus(path, http.StatusForbidden)
	}
	f := start(t, api)
	api.waitForRequests(someRequests, servicesPath, slicesPath)
	for _, path := range []string{servicesPath, slicesPath} {
		api.setStatus(path, 0)
	}
	f.ready()
	f.stop()
	got := f.logLines()
	slices.Sort(got)
	want := lines(
		`INFO "The API server answers again" kind=endpointslices`, `INFO "The API server answers again" kind=services`,
		fmt.Sprintf(`WARN %q kind=endpointslices`, forbidden.text()), fmt.Sprintf(`WARN %q kind=services`, forbidden.text()),
	)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("log (-want +got):\n%s", d)
	}
}

func TestBadCredentialsAreReportedOnce(t *testing.T) {
	api := newAPIServer(t)
	for path := range kinds {
		api.setStatus(path, http.StatusUnauthorized)
	}
	f := startOptions(t, Options{Client: api.client(), NodeName: "n1"})
	api.waitForRequests(someRequests, slices.Collect(maps.Keys(kinds))...)
	f.stop()
	f.wantLog(fmt.Sprintf(`WARN %q server=%s`, unauthorized.text(), api.http.URL))
}

// outcome is the result of a request for a kind of object, and the expected log.
type outcome struct {
	kind string
	err  error
	want string // the log
}

func TestServerHealth(t *testing.T) {
	refused := &url.Error{Op: "Get", URL: "https://k8s:6443/api/v1/nodes?limit=500", Err: errors.New("connection refused")}
	timeout := &url.Error{Op: "Get", URL: "https://k8s:6443/api/v1/pods", Err: errors.New("timeout")}
	badCertificate := &url.Error{
		Op: "Get", URL: "https://k8s:6443/", Err: &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}},
	}
	denied := apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", errors.New("no"))
	broken := apierrors.NewInternalError(errors.New("etcd"))
	const (
		lost = "Cannot reach the API server, retrying; the rules stay server=https://k8s:6443"
		back = "The API server answers again server=https://k8s:6443\n"
	)
	f := &testSource{t: t, log: &texttest.Buffer{}}
	c := newServerHealth(slog.New(slog.NewTextHandler(f.log, nil)), "https://k8s:6443")
	seen := 0
	for i, s := range []outcome{
		{"nodes", nil, ""},
		{"nodes", refused, lost},
		{"services", timeout, ""},
		{"nodes", refused, ""},
		{"nodes", badCertificate, untrusted.text() + " server=https://k8s:6443"},
		{"nodes", denied, back + forbidden.text() + " kind=nodes"},
		{"services", nil, ""},
		{"nodes", denied, ""},
		{"services", broken, failing.text() + " kind=services"},
		{"nodes", nil, "The API server answers again kind=nodes"},
		{"services", refused, lost},
		{"services", nil, back + "The API server answers again kind=services"},
		{"services", nil, ""},
	} {
		r := c.begin(s.kind)
		r.ended(t.Context(), s.err)
		got := f.logLines()[seen:]
		seen += len(got)
		text := strings.NewReplacer("WARN ", "", "INFO ", "", `"`, "").Replace(strings.Join(got, ""))
		if d := cmp.Diff(s.want, strings.TrimSuffix(text, "\n")); d != "" {
			t.Errorf("step %d (-want +got):\n%s", i, d)
		}
	}
}

// A late error does not override a later success of another request, and a cancelled request has no effect.
func TestIgnoredRequests(t *testing.T) {
	f := &testSource{t: t, log: &texttest.Buffer{}}
	c := newServerHealth(slog.New(slog.NewTextHandler(f.log, nil)), "https://k8s:6443")
	refused := &url.Error{Op: "Get", URL: "https://k8s:6443/", Err: errors.New("connection refused")}
	late := c.begin("nodes")
	c.begin("services").ended(t.Context(), nil)
	late.ended(t.Context(), refused)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	c.begin("nodes").ended(cancelled, refused)
	if got := f.log.String(); got != "" {
		t.Errorf("the log is:\n%s", got)
	}
}

// The answer to a request that began before an outage does not end it.
func TestALateAnswerDoesNotEndAnOutage(t *testing.T) {
	f := &testSource{t: t, log: &texttest.Buffer{}}
	c := newServerHealth(slog.New(slog.NewTextHandler(f.log, nil)), "https://k8s:6443")
	refused := &url.Error{Op: "Get", URL: "https://k8s:6443/", Err: errors.New("connection refused")}
	c.begin("nodes").ended(t.Context(), nil)
	late := c.begin("services")
	c.begin("nodes").ended(t.Context(), refused)
	late.ended(t.Context(), nil)
	if got := len(f.logLines()); got != 1 || c.state().Connected {
		t.Errorf("connected: %v, %d lines in the log, want one:\n%s", c.state().Connected, got, f.log)
	}
	c.begin("services").ended(t.Context(), nil)
	if got := len(f.logLines()); got != 2 || !c.state().Connected {
		t.Errorf("connected: %v, %d lines in the log, want two:\n%s", c.state().Connected, got, f.log)
	}
}

// A missing Node is a problem that is reported once. It may be added later.
func TestMissingNode(t *testing.T) {
	api := newAPIServer(t)
	f := start(t, api)
	f.ready()
	api.expire()
	api.cutOff() // a second list
	api.set(nodesPath, node("n1", "192.168.0.1"))
	f.until(func() string {
		if f.facts.Node == nil {
			return "no Node"
		}
		return ""
	})
	f.stop()
	if d := cmp.Diff([]string{"Node n1 "}, f.problems); d != "" {
		t.Errorf("problems (-want +got):\n%s", d)
	}
}

func TestStopIsQuick(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never replies
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for _, tt := range []struct {
		name, url string
		requests  int // before it is stopped
	}{
		{"refused", closedPort(t).url(), len(kinds) + 5}, // the pauses have grown
		{"silent", "http://" + silent.Addr().String(), len(kinds)},
		{"unreachable", "http://192.0.2.1", len(kinds)}, // no machine has this address
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			client, requests := countedClientOf(t, tt.url)
			f := startWith(t, client)
			requests.reach(t, tt.requests)
			before := time.Now()
			f.stop()
			if took := time.Since(before); took > machine.Scale(time.Second) {
				t.Errorf("Run ended after %v", took)
			}
		})
	}
}

// A load balancer without servers accepts connections and closes them. That is an outage as
// well, which ends as soon as there is a server.
func TestClosedConnectionsAreAnOutage(t *testing.T) {
	empty := listerOf{watch: watch.NewEmptyWatch()}
	api := observed{&empty, kindServices, newServerHealth(slog.New(slog.DiscardHandler), "")}
	api.to.begin(kindServices).ended(t.Context(), nil)
	synctest.Test(t, func(t *testing.T) {
		time.AfterFunc(time.Hour, func() { empty.set(watch.NewFake()) })
		time.AfterFunc(time.Minute, func() {
			if st := api.to.state(); st.Connected || !strings.Contains(st.Trouble, "unreachable: "+errLost.Error()) {
				t.Errorf("after a minute: %+v", st)
			}
		})
		began := time.Now()
		w, err := api.Watch(t.Context(), metav1.ListOptions{})
		if w == nil || err != nil || time.Since(began) > time.Hour+2*time.Second {
			t.Errorf("got %v, %v after %v", w, err, time.Since(began))
		}
	})
	if st := api.to.state(); !st.Connected || st.Trouble != "" {
		t.Errorf("at the end: %+v", st)
	}
}

// listerOf returns a fixed watch.
type listerOf struct {
	mu    sync.Mutex
	watch watch.Interface
}

func (l *listerOf) set(w watch.Interface) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watch = w
}

func (*listerOf) List(context.Context, metav1.ListOptions, func(object) error) (metav1.ListMeta, error) {
	return metav1.ListMeta{}, nil
}

func (l *listerOf) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.watch, nil
}
