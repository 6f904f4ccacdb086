package page

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/html"

	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/event"
	"github.com/sluice-proxy/sluice/internal/health"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/sizes"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

// world is a daemon over a kernel in memory, in the bubble of a test.
type world struct {
	t       *testing.T
	store   *cluster.Store
	history *inspect.History
	status  inspect.Status
	handler http.Handler
}

func newWorld(t *testing.T, tune ...func(*inspect.Options)) *world {
	t.Helper()
	w := &world{t: t, store: cluster.NewStore(), history: inspect.NewHistory()}
	w.status = inspect.Status{Version: "v1.2.0", Since: time.Now(), Mode: inspect.Mode{Name: "memory"}}
	w.status.Health.State = health.Healthy
	w.store.SetNode(&cluster.Node{Name: "node-a"})
	counted := sizes.New()
	loop := proxy.New(proxy.Options{
		Store: w.store, Plane: &planetest.Memory{}, Log: slog.New(slog.DiscardHandler),
		Compiler: route.NewCompiler(route.Options{
			NodeName: "node-a", Detector: route.DetectorOptions{
				Kind: route.DetectClusterCIDR, CIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
			},
		}),
		Followers: []proxy.Follower{counted}, Observe: w.history.Observe,
	})
	opt := inspect.Options{
		Loop: loop, Store: w.store, History: w.history, Sizes: counted.Sizes, Plane: plane.Facts{Name: "memory"},
		Status: func(context.Context) inspect.Status { return w.status },
		Local:  func(context.Context) ([]netip.Addr, error) { return nil, nil },
	}
	for _, change := range tune {
		change(&opt)
	}
	w.handler = New(inspect.New(opt))
	ctx, cancel := context.WithCancel(t.Context())
	go func() { _ = loop.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		time.Sleep(longestPause) // the last answer ends its turn
		synctest.Wait()
	})
	return w
}

// serves waits until everything in the store is in force.
func (w *world) serves() {
	w.store.Feed()()
	synctest.Wait()
}

// add adds a Service with as many endpoints.
func (w *world) add(namespace, name, addr string, endpoints int) {
	n := cluster.Name{Namespace: namespace, Name: name}
	w.store.SetService(&cluster.Service{
		Name: n, ClusterIPs: []netip.Addr{netip.MustParseAddr(addr)},
		Ports: []cluster.ServicePort{{Name: "http", Protocol: cluster.TCP, Port: 80}},
	})
	slice := &cluster.Slice{
		Name: n, Service: n, Ports: []cluster.SlicePort{{Name: "http", Protocol: cluster.TCP, Port: 8080}},
	}
	for i := range endpoints {
		slice.Endpoints = append(slice.Endpoints, cluster.Endpoint{
			Addr: netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), Ready: true, Serving: true,
		})
	}
	w.store.SetSlice(slice)
}

// from is where a request comes in, and under which name.
type from struct{ local, host string }

func home() from { return from{"127.0.0.1:10249", "localhost:10249"} }

func (w *world) ask(method, url string, f from) *httptest.ResponseRecorder {
	w.t.Helper()
	var local net.Addr = net.TCPAddrFromAddrPort(netip.MustParseAddrPort(f.local))
	ctx := context.WithValue(w.t.Context(), http.LocalAddrContextKey, local)
	r := httptest.NewRequestWithContext(ctx, method, url, http.NoBody)
	r.Host = f.host
	rec := httptest.NewRecorder()
	w.handler.ServeHTTP(rec, r)
	time.Sleep(longestPause)
	return rec
}

// get returns the page, and everything in it.
func (w *world) get(url string) (string, *html.Node) {
	w.t.Helper()
	rec := w.ask(http.MethodGet, url, home())
	body := rec.Body.String()
	doc, err := html.Parse(strings.NewReader(body))
	if err != nil || rec.Code != http.StatusOK {
		w.t.Fatalf("%s: %d %v\n%s", url, rec.Code, err, body)
	}
	return body, doc
}

// all returns the elements of a kind.
func all(doc *html.Node, tag string) (found []*html.Node) {
	for n := range doc.Descendants() {
		if n.Type == html.ElementNode && n.Data == tag {
			found = append(found, n)
		}
	}
	return found
}

func attribute(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

// words returns the text in an element.
func textOf(n *html.Node) string {
	var out strings.Builder
	for c := range n.Descendants() {
		if c.Type == html.TextNode {
			out.WriteString(c.Data)
		}
	}
	return out.String()
}

func has(t *testing.T, page string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(page, part) {
			t.Errorf("no %q in\n%s", part, page)
		}
	}
}

// The page is complete by itself, and people find their way in it who do not see it.
func TestPageIsSelfContainedAndAccessible(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add("shop", "web", "10.96.0.80", 3)
		w.serves()
		w.status.Configuration.Refused = "line 3: mode: Unsupported value"
		w.history.Record(event.Event{
			Object: event.Object{Kind: "Service", Namespace: "shop", Name: "web"},
			Type:   event.Warning, Reason: "Why", Note: "what",
		})
		rec := w.ask(http.MethodGet, "/", home())
		_, doc := w.get("/?from=10.244.0.1&to=shop/web:80&service=shop/web")
		sum := sha256.Sum256([]byte(all(doc, "style")[0].FirstChild.Data))
		has(t, rec.Header().Get("Content-Security-Policy"), "default-src 'none'", "form-action 'self'",
			"'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'")
		if got := attribute(all(doc, "html")[0], "lang"); got != "en" {
			t.Errorf("language %q", got)
		}
		if n := len(all(doc, "h1")); n != 1 {
			t.Errorf("%d elements h1, want 1", n)
		}
		for n := range doc.Descendants() {
			verifyElement(t, n)
		}
		for _, s := range all(doc, "svg") {
			has(t, attribute(s, "aria-label"), "10.244.0.1 to 10.96.0.80:80/tcp: balanced over 3 backends")
		}
		has(t, textOf(doc), "healthy, 1 warning", "Attention", "line 3: mode", "clusterIP 10.96.0.80:80/tcp", "1/3",
			"10.244.0.2:8080", "Service shop/web", "3 endpoints", "Why")
	})
}

// verifyElement verifies what holds for each element.
func verifyElement(t *testing.T, n *html.Node) {
	t.Helper()
	switch n.Data {
	case "script", "img", "link", "iframe", "object", "embed":
		t.Errorf("the page has an element %s", n.Data)
	case "th":
		if attribute(n, "scope") != "col" {
			t.Errorf("the title %s has no scope", textOf(n))
		}
	case "input":
		if n.Parent.Data != "label" || textOf(n.Parent) == "" {
			t.Errorf("the input %s has no label", attribute(n, "name"))
		}
	case "table":
		if len(all(n, "caption")) == 0 {
			t.Error("a table has no caption")
		}
	}
	for _, a := range n.Attr {
		own := strings.HasPrefix(a.Val, "./") || strings.HasPrefix(a.Val, "#")
		foreign := (a.Key == "href" || a.Key == "action") && !own
		if a.Key == "style" || strings.HasPrefix(a.Key, "on") || foreign {
			t.Errorf("%s has %s=%q", n.Data, a.Key, a.Val)
		}
	}
}

// What people type and what tenants name is text, whatever it contains.
func TestPageEscapes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add("shop", "web", "10.96.0.80", 1)
		w.serves()
		w.status.Source.From = `"><script>alert(1)</script>`
		const evil = "%22%3E%3Cscript%3Ealert(1)%3C/script%3E"
		_, doc := w.get("/?q=" + evil + "&from=" + evil + "&to=" + evil + "&service=" + evil + "&page=" + evil)
		if n := len(all(doc, "script")); n > 0 {
			t.Errorf("%d scripts", n)
		}
		if got := attribute(all(doc, "input")[0], "value"); got != `"><script>alert(1)</script>` {
			t.Errorf("the form has %q", got)
		}
	})
}

// With very many Services the page has a part of them.
func TestPageIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for i := range 10_000 {
			w.add("shop", fmt.Sprintf("web-%04d", i), netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}).String(), i%2)
		}
		w.add("shop", "large", "10.97.0.1", 5000)
		w.serves()
		for _, tt := range []struct{ url, first, last, count string }{
			{"/", "large", "web-0098", "10001 Services"},
			{"/?page=100", "web-9999", "web-9999", "Page 101 of 101"},
			{"/?q=web-12&page=0", "web-1200", "web-1299", `100 Services with "web-12"`},
			{"/?q=10.96.39.15", "web-9999", "web-9999", `1 Service with`},
			{"/?problems=1", "web-0000", "web-0198", "5000 Services with a problem"},
			{"/?page=7000", "", "", "Page 7001 of 101"},
			{"/?page=9223372036854775807", "", "", "Page 2147483648 of 101"},
		} {
			body, doc := w.get(tt.url)
			var names []string
			for _, td := range all(doc, "td") {
				if attribute(td, "data-title") == "NAME" {
					names = append(names, textOf(td))
				}
			}
			if len(body) > 200_000 || len(names) > maxServices {
				t.Errorf("%s: %d bytes, %d Services", tt.url, len(body), len(names))
			}
			names = append(names, "")
			if first, last := names[0], names[max(0, len(names)-2)]; first != tt.first || last != tt.last {
				t.Errorf("%s: from %s to %s, want from %s to %s", tt.url, first, last, tt.first, tt.last)
			}
			has(t, textOf(doc), tt.count)
		}
		body, doc := w.get("/?service=shop/large&from=node&to=shop/large")
		if n := len(all(doc, "tr")); n > 1000 || len(body) > 500_000 {
			t.Errorf("%d rows, %d bytes", n, len(body))
		}
		has(t, textOf(doc), "5000 endpoints", "4800 more are not shown", "and 4994 more backends")
	})
}

// Only clients on the node, by a name that no website can have, see the Services.
func TestServicesAreForTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add("shop", "web", "10.96.0.80", 1)
		w.serves()
		for _, tt := range []struct {
			from
			all bool
		}{
			{home(), true},
			{from{"127.0.0.1:10249", "127.0.0.1"}, true},
			{from{"[::1]:10249", "[::1]:10249"}, true},
			{from{"[::ffff:127.0.0.1]:10249", "localhost:8080"}, true},
			{from{"127.0.0.1:10249", "evil.example.com:10249"}, false},
			{from{"127.0.0.1:10249", "localhost.example.com"}, false},
			{from{"127.0.0.1:10249", ""}, false},
			{from{"192.168.0.4:10249", "192.168.0.4:10249"}, false},
			{from{"192.168.0.4:10249", "localhost"}, false},
		} {
			body := w.ask(http.MethodGet, "/?to=shop/web&from=node&service=shop/web&q=web", tt.from).Body.String()
			if got := strings.Contains(body, "10.96.0.80"); got != tt.all || !strings.Contains(body, "healthy") {
				t.Errorf("%v: Services are shown: %v, want %v", tt.from, got, tt.all)
			}
		}
	})
}

func TestHead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := newWorld(t).ask(http.MethodHead, "/", home())
		if rec.Code != http.StatusOK || rec.Body.Len() > 0 || rec.Header().Get("Content-Security-Policy") == "" {
			t.Errorf("got %d %s", rec.Code, rec.Body)
		}
	})
}

// Before all objects have arrived the page says so, and does not show an empty list.
func TestPageBeforeTheFirstSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body, _ := newWorld(t).get("/?to=shop/web")
		if n := strings.Count(body, "not all Services have arrived yet"); n < 3 {
			t.Errorf("said %d times, want in status, Explain and Services:\n%s", n, body)
		}
	})
}

// Requests are answered one at a time, with pauses, and those that would wait too long are refused.
func TestPageAnswersOneRequestAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.serves()
		h, ok := w.handler.(*handler)
		if !ok {
			t.Fatal(errors.New("another handler"))
		}
		h.slot <- struct{}{}
		began := time.Now()
		rec := w.ask(http.MethodGet, "/", home())
		if took := time.Since(began) - longestPause; rec.Code != http.StatusServiceUnavailable || took != answerTime {
			t.Errorf("got %d after %v: %s", rec.Code, took, rec.Body)
		}
		if rec.Header().Get("Retry-After") == "" || !strings.HasPrefix(rec.Body.String(), "this page answers one request") {
			t.Errorf("got %v %s", rec.Header(), rec.Body)
		}
		<-h.slot
		if rec := w.ask(http.MethodGet, "/", home()); rec.Code != http.StatusOK {
			t.Errorf("got %d", rec.Code)
		}
	})
}
