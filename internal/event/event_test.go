package event

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// The problems of an object are one warning for each class, so that the aggregation of Events, which ignores notes,
// drops none.
func TestProblemsOfOneObjectAreFewWarnings(t *testing.T) {
	got := OfProblems([]route.Problem{
		{Object: "Service default/web", Field: "spec.externalIPs[0]", Value: "1.2.3", Reason: "not an IP address"},
		{Object: "Node n1", Reason: "does not exist"},
		{Object: "Service default/web", Field: "spec.externalIPs[2]", Value: "::", Reason: "unspecified"},
		{Object: "Service default/web", Field: "spec.ports[0].port", Value: "0", Reason: "expected 1 to 65535"},
		{Object: "/etc/sluice/a.yaml: Service default/web", Reason: "also in b.yaml, which takes precedence"},
		{Object: "/etc/sluice/a.yaml", Reason: "permission denied"},
		{Object: "Service", Field: "metadata.name", Reason: "an object needs a name"},
		{Object: "Service default/db", Field: "spec.externalIPs[0]", Value: "x", Reason: "not an IP address"},
	})
	web, db := Object{"Service", "default", "web"}, Object{"Service", "default", "db"}
	want := []Event{
		{
			web, Warning, "InvalidAddress", "Program",
			"spec.externalIPs[0]: 1.2.3: not an IP address; spec.externalIPs[2]: ::: unspecified", true, "",
		},
		{Object{"Node", "", "n1"}, Warning, "InvalidObject", "Program", "does not exist", false, ""},
		{web, Warning, "InvalidPort", "Program", "spec.ports[0].port: 0: expected 1 to 65535", true, ""},
		{db, Warning, "InvalidAddress", "Program", "spec.externalIPs[0]: x: not an IP address", true, ""},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if got := OfProblems(nil); got != nil {
		t.Errorf("no problems make %v", got)
	}
}

// Contests are about the own Node, and name the program and the remedy.
func TestContestsAreEventsOfTheNode(t *testing.T) {
	begin := RulesContested("nft (thread 812) repeatedly changed the rules of Sluice", `the tables "sluice"`)
	end := RulesUncontested()
	if begin.Object != (Object{}) || begin.Type != Warning || begin.Reason != "RulesContested" ||
		!strings.HasPrefix(begin.Note, "nft (thread 812) ") ||
		!strings.Contains(begin.Note, `Stop that program, or keep it off the tables "sluice": `) {
		t.Errorf("the beginning is %+v", begin)
	}
	if end.Object != (Object{}) || end.Type != Normal || end.Reason != "RulesUncontested" || end.Note == "" {
		t.Errorf("the end is %+v", end)
	}
}

// Conflicts are recognized by the words of package route; this test keeps the two packages consistent.
func TestAConflictIsOne(t *testing.T) {
	store := cluster.NewStore()
	for _, name := range []string{"first", "second"} {
		store.SetService(&cluster.Service{
			Name:        cluster.Name{Namespace: "default", Name: name},
			ClusterIPs:  []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, name[0]})},
			ExternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
			Ports:       []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80}},
		})
	}
	_, problems := route.NewCompiler(route.Options{}).Compile(store.Take())
	want := []Event{{
		Object{"Service", "default", "second"},
		Warning, "ConflictingClaim", "Program",
		"spec.externalIPs: 192.0.2.1:80/tcp: left out, as it belongs to Service default/first",
		true, "",
	}}
	if diff := cmp.Diff(want, OfProblems(problems)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// So are frontends that would hide a server of the proxy itself.
func TestAHiddenServerIsAConflict(t *testing.T) {
	store := cluster.NewStore()
	store.SetService(&cluster.Service{
		Name:       cluster.Name{Namespace: "default", Name: "web"},
		Type:       cluster.NodePort,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports:      []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80, NodePort: 10256}},
	})
	servers := []route.Listener{{At: netip.MustParseAddrPort("0.0.0.0:10256"), Name: "health server"}}
	_, problems := route.NewCompiler(route.Options{Listeners: servers}).Compile(store.Take())
	want := []Event{{
		Object{"Service", "default", "web"},
		Warning, "ConflictingClaim", "Program",
		"spec.ports[0].nodePort: 10256/tcp: left out, as it would hide this proxy's health server, " +
			"which listens on 0.0.0.0:10256; use another port",
		true, "",
	}}
	if diff := cmp.Diff(want, OfProblems(problems)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestClasses(t *testing.T) {
	for field, want := range map[string]Class{
		"spec.clusterIP": Address, "spec.clusterIPs[1]": Address, "spec.externalIPs[0]": Address,
		"status.loadBalancer.ingress[0].ip": Address, "spec.loadBalancerSourceRanges[0]": Address,
		"endpoints[3].addresses[0]": Address, "status.addresses[0].address": Address, "spec.cidrs[0]": Address,
		"spec.podCIDRs[0]": Address, "status.podIPs[0]": Address,
		"spec.ports[0].port": Port, "spec.ports[0].nodePort": Port, "spec.ports[2]": Port, "ports[0].protocol": Port,
		"spec.healthCheckNodePort": Port,
		"spec.type":                Other, "addressType": Other, "spec.sessionAffinity": Other, "": Other,
		"spec.whatever.people[0].write": Other,
	} {
		if got := ClassOf(route.Problem{Field: field}); got != want {
			t.Errorf("a problem of %q is of class %s, want %s", field, got, want)
		}
	}
}

func TestWellKnownEvents(t *testing.T) {
	busy := errors.New("listen tcp4 :30000: address already in use")
	got := []Event{
		Starting(), StartFailed(FailedToStartMetricServer, busy),
		HealthPortFailed("default", "web", busy), KubeProxyRuns("it runs"),
	}
	want := []Event{
		{Object{}, Normal, "Starting", "StartKubeProxy", "", false, ""},
		{Object{}, Warning, "FailedToStartMetricServer", "StartKubeProxy", busy.Error(), false, ""},
		{Object{"Service", "default", "web"}, Warning, "FailedToStartServiceHealthcheck", "Listen", busy.Error(), false, ""},
		{Object{}, Warning, "KubeProxyRuns", "TakeOver", "it runs", false, ""},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// Very many problems of one object are counted where the note is full.
func TestANoteIsNotCutOffBeforeTheCount(t *testing.T) {
	var problems []route.Problem
	for range 1000 {
		problems = append(problems, route.Problem{
			Object: "Service default/web", Field: "spec.externalIPs[0]", Value: "1.2.3", Reason: "not an IP address",
		})
	}
	events := OfProblems(append(problems,
		route.Problem{Object: "Service default/web", Field: "spec.externalIPs[1]", Count: 500}))
	if len(events) != 1 || len(events[0].Note) > 1000 || !strings.HasSuffix(events[0].Note, "; and 1481 more") {
		t.Errorf("got %+v", events)
	}
}

// A summary is known by its group, as nodes may count different objects.
func TestSummaries(t *testing.T) {
	a := route.Problem{
		Object: "Service shop/a", Field: "spec.externalIPs", Value: "192.0.2.1:80/tcp",
		Reason: "left out, as it belongs to Service x/y; 7 more such problems in namespace shop", Count: 8,
	}
	b := a
	b.Object, b.Count = "Service shop/b", 9
	x, _ := OfSummary(SameProblem(a), a)
	y, ok := OfSummary(SameProblem(b), b)
	if !ok || x.Key == "" || x.Key != y.Key || !x.Everywhere || y.Object != (Object{"Service", "shop", "b"}) {
		t.Errorf("got %+v and %+v", x, y)
	}
	if _, ok := OfSummary(Group{}, route.Problem{Object: "/etc/sluice/a.yaml"}); ok {
		t.Error("a file has an Event")
	}
}

// The Event of an ejected endpoint is on its Service.
func TestEjected(t *testing.T) {
	got := Ejected(route.Problem{Object: "Service shop/web", Field: "endpoint", Value: "10.0.0.1:80", Reason: "failed"})
	want := Event{
		Object: Object{"Service", "shop", "web"}, Type: Warning, Reason: "EndpointEjected", Action: actionProgram,
		Note: "endpoint: 10.0.0.1:80: failed",
	}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}
