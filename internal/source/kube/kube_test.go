package kube

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/source/convert"
	"github.com/sluice-proxy/sluice/internal/testing/texttest"
)

func service(name, ip string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: ip, Ports: []corev1.ServicePort{{Port: 80}}},
	}
}

func endpointSlice(name, svc, ip string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: svc},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new(""), Port: ptr.To[int32](8080)}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{ip}}},
	}
}

func node(name, ip string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}}},
	}
}

func serviceCIDR(name string, cidrs ...string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs},
	}
}

// testSource is a Source that reads from an API server.
type testSource struct {
	t     *testing.T
	store *cluster.Store
	log   *texttest.Buffer
	src   *Source
	stop  func()

	mu       sync.Mutex
	problems []string
	facts    cluster.Facts
	state    map[string]string // service -> addresses of its endpoints
}

func start(t *testing.T, api *apiServer) *testSource {
	t.Helper()
	return startWith(t, api.client())
}

func startWith(t *testing.T, client *Client) *testSource {
	t.Helper()
	return startOptions(t, Options{Client: client, NodeName: "n1", Convert: convert.Converter{AllowExternalIPs: true}})
}

// startOptions starts a Source whose log and problems are recorded.
func startOptions(t *testing.T, o Options) *testSource {
	t.Helper()
	f := &testSource{t: t, store: cluster.NewStore(), log: &texttest.Buffer{}, state: map[string]string{}}
	o.Log = slog.New(slog.NewTextHandler(f.log, nil))
	o.Report = func(ps []route.Problem) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, p := range ps {
			f.problems = append(f.problems, p.Object+" "+p.Field)
		}
	}
	src := New(f.store, o)
	f.src = src
	shortenPauses(src)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- src.Run(ctx) }()
	f.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(f.stop)
	return f
}

// ready waits until every kind was listed.
func (f *testSource) ready() {
	f.t.Helper()
	select {
	case <-f.store.Ready():
	case <-time.After(30 * time.Second):
		f.t.Fatal("the store is not ready after 30 s")
	}
}

// takeChanges updates state and facts.
func (f *testSource) takeChanges() {
	c := f.store.Take()
	if c.Facts != nil {
		f.facts = *c.Facts
	}
	for _, s := range c.Services {
		delete(f.state, s.Name.String())
		if s.Service == nil {
			continue
		}
		var eps []string
		for _, sl := range s.Slices {
			for _, ep := range sl.Endpoints {
				eps = append(eps, ep.Addr.String())
			}
		}
		slices.Sort(eps)
		f.state[s.Name.String()] = fmt.Sprint(s.Service.ClusterIPs, " ", eps, s.Service.Ignored)
	}
}

// waitFor waits until state is as wanted.
func (f *testSource) waitFor(want map[string]string) {
	f.t.Helper()
	f.until(func() string { return cmp.Diff(want, f.state) })
}

func (f *testSource) until(diff func() string) {
	f.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		f.takeChanges()
		d := diff()
		if d == "" {
			return
		}
		if time.Now().After(deadline) {
			f.t.Fatalf("after 30 s (-want +got):\n%s", d)
		}
		select {
		case <-f.store.Changed():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// leaving returns an error text unless the Node is leaving.
func (f *testSource) leaving() string {
	if n := f.store.Node(); n == nil || !n.Leaving || len(n.Addresses) == 0 {
		return fmt.Sprintf("the Node is %+v, want it leaving, with its addresses", n)
	}
	return ""
}

// testEncodings runs a test with lists in JSON and in protobuf.
func testEncodings(t *testing.T, test func(*testing.T, *apiServer)) {
	t.Helper()
	t.Run("json", func(t *testing.T) { test(t, newAPIServer(t)) })
	t.Run("protobuf", func(t *testing.T) {
		api := newAPIServer(t)
		api.protobuf = true
		test(t, api)
	})
}

func TestListAndWatch(t *testing.T) {
	testEncodings(t, testListAndWatch)
}

func testListAndWatch(t *testing.T, api *apiServer) {
	t.Helper()
	api.set(servicesPath, service("web", "10.96.0.1"))
	api.set(slicesPath, endpointSlice("web-1", "web", "10.0.0.1"))
	api.set(nodesPath, node("n1", "192.168.0.1"))
	api.set(nodesPath, node("n2", "192.168.0.2")) // a real server would not send it
	api.set(cidrsPath, serviceCIDR("a", "10.96.0.0/16"))
	f := start(t, api)
	f.ready()
	f.waitFor(map[string]string{"default/web": "[10.96.0.1] [10.0.0.1]"})
	want := cluster.Facts{
		Node:         &cluster.Node{Name: "n1", Addresses: []netip.Addr{netip.MustParseAddr("192.168.0.1")}},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
	}
	if d := diffFacts(want, f.facts); d != "" {
		t.Errorf("facts (-want +got):\n%s", d)
	}

	api.set(slicesPath, endpointSlice("web-2", "web", "10.0.0.2"))
	f.waitFor(map[string]string{"default/web": "[10.96.0.1] [10.0.0.1 10.0.0.2]"})
	api.set(servicesPath, service("web", "10.96.0.2"))
	f.waitFor(map[string]string{"default/web": "[10.96.0.2] [10.0.0.1 10.0.0.2]"})
	api.remove(slicesPath, "default/web-1")
	f.waitFor(map[string]string{"default/web": "[10.96.0.2] [10.0.0.2]"})

	labelled := service("web", "10.96.0.2") // S-237, for a server that does not filter
	labelled.Labels = map[string]string{convert.LabelProxyName: "foo"}
	api.set(servicesPath, labelled)
	f.waitFor(map[string]string{"default/web": "[] [10.0.0.2]label service.kubernetes.io/service-proxy-name=foo"})
	headless := endpointSlice("web-2", "web", "10.0.0.2") // S-238
	headless.Labels[convert.LabelHeadless] = ""
	api.set(slicesPath, headless)
	f.waitFor(map[string]string{"default/web": "[] []label service.kubernetes.io/service-proxy-name=foo"})

	api.remove(servicesPath, "default/web")
	api.remove(nodesPath, "/n2")
	f.waitFor(map[string]string{})
	api.remove(nodesPath, "/n1")
	f.until(f.leaving) // keeps its addresses
	f.stop()
	if f.log.String() != "" {
		t.Errorf("the log is:\n%s\nwant none", f.log)
	}
}

func diffFacts(want, got cluster.Facts) string {
	return cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }))
}

// ServiceCIDRs take effect at once, and the deletion of one does not affect ranges of others.
func TestServiceCIDRsAreAUnion(t *testing.T) {
	api := newAPIServer(t)
	api.set(cidrsPath, serviceCIDR("a", "10.96.0.0/16"))
	api.set(cidrsPath, serviceCIDR("b", "10.96.0.0/16", "fd00:96::/112"))
	f := start(t, api)
	f.ready()
	check := func(want string) {
		t.Helper()
		f.until(func() string { return cmp.Diff(want, fmt.Sprint(f.facts.ServiceCIDRs)) })
	}
	check("[10.96.0.0/16 fd00:96::/112]")
	api.remove(cidrsPath, "/a")
	api.set(cidrsPath, serviceCIDR("c", "10.97.0.0/16"))
	check("[10.96.0.0/16 10.97.0.0/16 fd00:96::/112]")
	api.remove(cidrsPath, "/b")
	check("[10.97.0.0/16]")
}

func TestTheServerFilters(t *testing.T) {
	api := newAPIServer(t)
	f := start(t, api)
	f.ready()
	f.stop()
	requests := api.requestLog()
	for _, want := range []string{
		servicesPath + " !service.kubernetes.io/service-proxy-name spec.clusterIP!=None",
		slicesPath + " !service.kubernetes.io/headless ",
		nodesPath + "  metadata.name=n1",
		cidrsPath + "  ",
	} {
		if !slices.Contains(requests, want) {
			t.Errorf("no request for %q", want)
		}
	}
	for _, got := range requests {
		if strings.HasPrefix(got, servicesPath) && !strings.Contains(got, "!=None") {
			t.Errorf("a request without a selector: %q", got)
		}
	}
}

func TestNotReadyBeforeEveryKindWasListed(t *testing.T) {
	api := newAPIServer(t)
	api.setStatus(slicesPath, http.StatusInternalServerError)
	api.set(servicesPath, service("web", "10.96.0.1"))
	f := start(t, api)
	f.waitFor(map[string]string{"default/web": "[10.96.0.1] []"})
	api.waitForRequests(someRequests, slicesPath)
	select {
	case <-f.store.Ready():
		t.Fatal("ready without EndpointSlices")
	default:
	}
	api.setStatus(slicesPath, 0)
	f.ready()
}

func TestWatchResumesAfterACut(t *testing.T) {
	api := newAPIServer(t)
	api.set(servicesPath, service("web", "10.96.0.1"))
	f := start(t, api)
	f.ready()
	api.cutOff()
	api.set(servicesPath, service("db", "10.96.0.2"))
	f.waitFor(map[string]string{"default/web": "[10.96.0.1] []", "default/db": "[10.96.0.2] []"})
}

func TestRelistDeletesMissingObjects(t *testing.T) {
	testEncodings(t, testRelist)
}

func testRelist(t *testing.T, api *apiServer) {
	t.Helper()
	for _, name := range []string{"a", "b"} {
		api.set(servicesPath, service(name, "10.96.0.1"))
		api.set(slicesPath, endpointSlice(name+"-1", name, "10.0.0.1"))
	}
	api.set(cidrsPath, serviceCIDR("x", "10.96.0.0/16"))
	api.set(nodesPath, node("n1", "192.168.0.1"))
	f := start(t, api)
	f.ready()
	for path := range kinds {
		api.setStatus(path, http.StatusServiceUnavailable)
	}
	api.cutOff()
	api.remove(servicesPath, "default/a")
	api.remove(slicesPath, "default/b-1")
	api.remove(cidrsPath, "/x")
	api.remove(nodesPath, "/n1")
	api.expire()
	for path := range kinds {
		api.setStatus(path, 0)
	}
	f.waitFor(map[string]string{"default/b": "[10.96.0.1] []"})
	f.until(f.leaving)
	f.until(func() string { return cmp.Diff("[]", fmt.Sprint(f.facts.ServiceCIDRs)) })
}

func TestServerWithoutServiceCIDRs(t *testing.T) {
	for _, status := range []int{http.StatusNotFound, http.StatusForbidden} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			api := newAPIServer(t)
			api.setStatus(cidrsPath, status)
			api.set(servicesPath, service("web", "10.96.0.1"))
			f := start(t, api)
			f.ready()
			api.waitForRequests(someRequests, cidrsPath)
			api.setStatus(cidrsPath, 0)
			api.set(cidrsPath, serviceCIDR("x", "10.96.0.0/16"))
			f.until(func() string { return cmp.Diff("[10.96.0.0/16]", fmt.Sprint(f.facts.ServiceCIDRs)) })
			f.stop()
			if d := cmp.Diff(lines(
				`WARN "`+textOptional+`" kind=servicecidrs`,
				`INFO "The API server answers again" kind=servicecidrs`,
			), f.logLines()); d != "" {
				t.Errorf("log (-want +got):\n%s", d)
			}
		})
	}
}

func TestProblemsAreReportedOnce(t *testing.T) {
	api := newAPIServer(t)
	svc := service("web", "10.96.0.1")
	svc.Spec.ExternalIPs = []string{"garbage", "192.0.2.1"}
	api.set(servicesPath, svc)
	api.set(nodesPath, node("n1", "192.168.0.1"))
	f := start(t, api)
	f.ready()
	again := svc.DeepCopy()
	again.Spec.Ports[0].Port = 81
	api.set(servicesPath, again)
	api.set(servicesPath, service("db", "10.96.0.2"))
	f.waitFor(map[string]string{"default/web": "[10.96.0.1] []", "default/db": "[10.96.0.2] []"})
	f.mu.Lock()
	defer f.mu.Unlock()
	if d := cmp.Diff([]string{"Service default/web spec.externalIPs[0]"}, f.problems); d != "" {
		t.Errorf("problems (-want +got):\n%s", d)
	}
}
