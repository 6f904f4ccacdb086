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
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/source/convert"
	"github.com/sluice-proxy/sluice/internal/text/texttest"
)

func service(name, ip string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: ip, Ports: []corev1.ServicePort{{Port: 80}}},
	}
}

func endpointSlice(name, svc, ip string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: svc}},
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
	return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
}

// feedOf is a Source at work on an API server.
type feedOf struct {
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

func start(t *testing.T, api *apiServer) *feedOf {
	t.Helper()
	return startWith(t, api.client())
}

func startWith(t *testing.T, client *Client) *feedOf {
	t.Helper()
	f := &feedOf{t: t, store: cluster.NewStore(), log: &texttest.Buffer{}, state: map[string]string{}}
	src := New(f.store, Options{
		Client: client, NodeName: "n1", AllowExternalIPs: true,
		Log: slog.New(slog.NewTextHandler(f.log, nil)),
		Report: func(ps []route.Problem) {
			f.mu.Lock()
			defer f.mu.Unlock()
			for _, p := range ps {
				f.problems = append(f.problems, p.Object+" "+p.Field)
			}
		},
	})
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

// ready waits until everything was listed.
func (f *feedOf) ready() {
	f.t.Helper()
	select {
	case <-f.store.Ready():
	case <-time.After(10 * time.Second):
		f.t.Fatal("the store is not ready after 10 s")
	}
}

// take brings state and facts up to date.
func (f *feedOf) take() {
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

// becomes waits until the services are as wanted.
func (f *feedOf) becomes(want map[string]string) {
	f.t.Helper()
	f.until(func() string { return cmp.Diff(want, f.state) })
}

func (f *feedOf) until(diff func() string) {
	f.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		f.take()
		d := diff()
		if d == "" {
			return
		}
		if time.Now().After(deadline) {
			f.t.Fatalf("not so after 10 s (-want +got):\n%s", d)
		}
		select {
		case <-f.store.Changed():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// leaving says what is wrong with a Node that is gone.
func (f *feedOf) leaving() string {
	if n := f.store.Node(); n == nil || !n.Leaving || len(n.Addresses) == 0 {
		return fmt.Sprintf("the Node is %+v, want it leaving, with its addresses", n)
	}
	return ""
}

// listedAndStreamed runs a test against both ways a server tells what there is.
func listedAndStreamed(t *testing.T, test func(*testing.T, *apiServer)) {
	t.Helper()
	t.Run("listed", func(t *testing.T) { test(t, newAPIServer(t)) })
	t.Run("streamed", func(t *testing.T) {
		api := newAPIServer(t)
		api.streams = true
		test(t, api)
	})
}

func TestListAndWatch(t *testing.T) {
	listedAndStreamed(t, listAndWatch)
}

func listAndWatch(t *testing.T, api *apiServer) {
	t.Helper()
	api.set(servicesPath, service("web", "10.96.0.1"))
	api.set(slicesPath, endpointSlice("web-1", "web", "10.0.0.1"))
	api.set(nodesPath, node("n1", "192.168.0.1"))
	api.set(nodesPath, node("n2", "192.168.0.2")) // a server would not send it
	api.set(cidrsPath, serviceCIDR("a", "10.96.0.0/16"))
	f := start(t, api)
	f.ready()
	f.becomes(map[string]string{"default/web": "[10.96.0.1] [10.0.0.1]"})
	want := cluster.Facts{
		Node:         &cluster.Node{Name: "n1", Addresses: []netip.Addr{netip.MustParseAddr("192.168.0.1")}},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
	}
	if d := diffFacts(want, f.facts); d != "" {
		t.Errorf("facts (-want +got):\n%s", d)
	}

	api.set(slicesPath, endpointSlice("web-2", "web", "10.0.0.2"))
	f.becomes(map[string]string{"default/web": "[10.96.0.1] [10.0.0.1 10.0.0.2]"})
	api.set(servicesPath, service("web", "10.96.0.2"))
	f.becomes(map[string]string{"default/web": "[10.96.0.2] [10.0.0.1 10.0.0.2]"})
	api.remove(slicesPath, "default/web-1")
	f.becomes(map[string]string{"default/web": "[10.96.0.2] [10.0.0.2]"})

	labelled := service("web", "10.96.0.2") // S-237, for a server that does not filter
	labelled.Labels = map[string]string{convert.LabelProxyName: "foo"}
	api.set(servicesPath, labelled)
	f.becomes(map[string]string{"default/web": "[] [10.0.0.2]label service.kubernetes.io/service-proxy-name=foo"})
	headless := endpointSlice("web-2", "web", "10.0.0.2") // S-238
	headless.Labels[convert.LabelHeadless] = ""
	api.set(slicesPath, headless)
	f.becomes(map[string]string{"default/web": "[] []label service.kubernetes.io/service-proxy-name=foo"})

	api.remove(servicesPath, "default/web")
	api.remove(nodesPath, "/n2")
	f.becomes(map[string]string{})
	api.remove(nodesPath, "/n1")
	f.until(f.leaving) // what is known of it holds on
	f.stop()
	if f.log.String() != "" {
		t.Errorf("all was well, but the log says:\n%s", f.log)
	}
}

func diffFacts(want, got cluster.Facts) string {
	return cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }))
}

// L-9: ServiceCIDRs act at once, and one gone takes nothing of another.
func TestServiceCIDRsAreAUnion(t *testing.T) {
	api := newAPIServer(t)
	api.set(cidrsPath, serviceCIDR("a", "10.96.0.0/16"))
	api.set(cidrsPath, serviceCIDR("b", "10.96.0.0/16", "fd00:96::/112"))
	f := start(t, api)
	f.ready()
	is := func(want string) {
		t.Helper()
		f.until(func() string { return cmp.Diff(want, fmt.Sprint(f.facts.ServiceCIDRs)) })
	}
	is("[10.96.0.0/16 fd00:96::/112]")
	api.remove(cidrsPath, "/a")
	api.set(cidrsPath, serviceCIDR("c", "10.97.0.0/16"))
	is("[10.96.0.0/16 10.97.0.0/16 fd00:96::/112]")
	api.remove(cidrsPath, "/b")
	is("[10.97.0.0/16]")
}

func TestSelectionIsLeftToTheServer(t *testing.T) {
	api := newAPIServer(t)
	f := start(t, api)
	f.ready()
	f.stop()
	asked := api.asked()
	for _, want := range []string{
		servicesPath + " !service.kubernetes.io/service-proxy-name spec.clusterIP!=None",
		slicesPath + " !service.kubernetes.io/headless ",
		nodesPath + "  metadata.name=n1",
		cidrsPath + "  ",
	} {
		if !slices.Contains(asked, want) {
			t.Errorf("nobody asked for %q", want)
		}
	}
	for _, got := range asked {
		if strings.HasPrefix(got, servicesPath) && !strings.Contains(got, "!=None") {
			t.Errorf("a request without selection: %q", got)
		}
	}
}

func TestNotReadyBeforeEveryKindWasListed(t *testing.T) {
	api := newAPIServer(t)
	api.answer(slicesPath, http.StatusInternalServerError)
	api.set(servicesPath, service("web", "10.96.0.1"))
	f := start(t, api)
	f.becomes(map[string]string{"default/web": "[10.96.0.1] []"})
	api.askedFor(tries, slicesPath)
	select {
	case <-f.store.Ready():
		t.Fatal("ready without EndpointSlices")
	default:
	}
	api.answer(slicesPath, 0)
	f.ready()
}

func TestWatchResumesAfterACut(t *testing.T) {
	api := newAPIServer(t)
	api.set(servicesPath, service("web", "10.96.0.1"))
	f := start(t, api)
	f.ready()
	api.cutOff()
	api.set(servicesPath, service("db", "10.96.0.2"))
	f.becomes(map[string]string{"default/web": "[10.96.0.1] []", "default/db": "[10.96.0.2] []"})
}

func TestRelistDropsWhatVanished(t *testing.T) {
	listedAndStreamed(t, relist)
}

func relist(t *testing.T, api *apiServer) {
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
		api.answer(path, http.StatusServiceUnavailable)
	}
	api.cutOff()
	api.remove(servicesPath, "default/a")
	api.remove(slicesPath, "default/b-1")
	api.remove(cidrsPath, "/x")
	api.remove(nodesPath, "/n1")
	api.expire()
	for path := range kinds {
		api.answer(path, 0)
	}
	f.becomes(map[string]string{"default/b": "[10.96.0.1] []"})
	f.until(f.leaving)
	f.until(func() string { return cmp.Diff("[]", fmt.Sprint(f.facts.ServiceCIDRs)) })
}

func TestServerWithoutServiceCIDRs(t *testing.T) {
	for _, status := range []int{http.StatusNotFound, http.StatusForbidden} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			api := newAPIServer(t)
			api.answer(cidrsPath, status)
			api.set(servicesPath, service("web", "10.96.0.1"))
			f := start(t, api)
			f.ready()
			api.askedFor(tries, cidrsPath)
			api.answer(cidrsPath, 0)
			api.set(cidrsPath, serviceCIDR("x", "10.96.0.0/16"))
			f.until(func() string { return cmp.Diff("[10.96.0.0/16]", fmt.Sprint(f.facts.ServiceCIDRs)) })
			f.stop()
			if d := cmp.Diff(lines(
				`WARN "`+textOptional+`" kind=servicecidrs`,
				`INFO "The API server answers again" kind=servicecidrs`,
			), f.said()); d != "" {
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
	f.becomes(map[string]string{"default/web": "[10.96.0.1] []", "default/db": "[10.96.0.2] []"})
	f.mu.Lock()
	defer f.mu.Unlock()
	if d := cmp.Diff([]string{"Service default/web spec.externalIPs[0]"}, f.problems); d != "" {
		t.Errorf("problems (-want +got):\n%s", d)
	}
}

// A list that comes as a stream passes through a store of client-go, which
// must be content with converted items.
func TestStreamedListHoldsConvertedItems(t *testing.T) {
	store := cluster.NewStore()
	src := New(store, Options{Client: newAPIServer(t).client()})
	to := src.feeds[0].to
	held := cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc, cache.WithTransformer(to.Transformer()))
	for _, obj := range []any{service("a", "10.96.0.1"), service("b", "10.96.0.2"), service("a", "10.96.0.3")} {
		if err := held.Add(obj); err != nil {
			t.Fatal(err)
		}
	}
	if err := held.Delete(service("b", "")); err != nil {
		t.Fatal(err)
	}
	if err := to.Replace(held.List(), ""); err != nil {
		t.Fatal(err)
	}
	got := store.Take().Services
	if len(got) != 1 || got[0].Service.ClusterIPs[0].String() != "10.96.0.3" {
		t.Errorf("the store has %+v", got)
	}
}
