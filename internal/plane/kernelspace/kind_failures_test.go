package kernelspace

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/hnstest"
	"github.com/sluice-proxy/sluice/internal/testing/metricstest"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

// failureFamily is a Service of one family with a load balancer of each kind.
type failureFamily struct {
	family   route.Family
	store    func(annotated, local bool) *cluster.Store
	places   map[class]string // of its load balancers
	backends []cluster.Endpoint
}

func failureFamilies() []failureFamily {
	return []failureFamily{
		{route.IPv4, preserving, map[class]string{
			clusterIP: "172.30.0.1 protocol 6 port 80", nodePort: "invalid IP protocol 6 port 30080",
			externalIP: "198.51.100.1 protocol 6 port 80", ingressIP: "203.0.113.1 protocol 6 port 80",
			healthCheck: "203.0.113.1 protocol 6 port 31000",
		}, []cluster.Endpoint{planetest.Endpoint("10.180.0.1", "a")}},
		{route.IPv6, ofIPv6, map[class]string{
			clusterIP: "fd00:172:30::1 protocol 6 port 80", nodePort: "invalid IP protocol 6 port 30080",
			externalIP: "2001:db8:198::1 protocol 6 port 80", ingressIP: "2001:db8:203::1 protocol 6 port 80",
			healthCheck: "2001:db8:203::1 protocol 6 port 31000",
		}, []cluster.Endpoint{planetest.Endpoint("fd00:10:180::1", "a")}},
	}
}

// failureCase is a write of a load balancer that HNS refuses with an error.
type failureCase struct {
	failureFamily
	op   string
	kind class
	err  error
}

// smallFake is an HNS with the endpoint of this node and one container, for both families.
func smallFake(t *testing.T) *hnstest.Fake {
	t.Helper()
	f := hnstest.New(hns.Network{Name: networkName, Type: hns.L2Bridge})
	n, err := f.Network(t.Context(), networkName)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range []hns.Endpoint{
		{Name: rootName, Addrs: planetest.Addrs("10.180.99.2", "fd00:10:180:99::2")},
		{Addrs: planetest.Addrs("10.180.0.1", "fd00:10:180::1")},
	} {
		e.Network = n.ID
		if _, err := f.CreateEndpoint(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// failures carries out the write and returns the counters that are not zero, without their values.
func (tc *failureCase) failures(t *testing.T) []string {
	t.Helper()
	f := smallFake(t)
	setup, _ := setup(config.HNS{Network: networkName, ForwardHealthCheck: true, RootEndpoint: rootName})
	opened, err := Kind(f, thisHost{}).Open(t.Context(), setup)
	if err != nil {
		t.Fatal(err)
	}
	opt := options()
	opt.NodeName = "a"
	compiler, store := route.NewCompiler(opt), tc.store(false, tc.kind == healthCheck)
	change, _ := compiler.Compile(store.Take())
	if err := opened.Plane.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if tc.op != "create" {
		if err := opened.Plane.Plan(change).Apply(t.Context()); err != nil {
			t.Fatal(err)
		}
		change, _ = compiler.Compile(tc.changed(store).Take())
	}
	f.Refuse = func(line string) error {
		op, rest, _ := strings.Cut(line, " ")
		refused := op == "modify" || op == tc.op || op == "create" && tc.op == "update"
		if refused && placeOf(rest) == tc.places[tc.kind] {
			return fmt.Errorf("%s: %w", line, tc.err)
		}
		return nil
	}
	_ = opened.Plane.Plan(change).Apply(t.Context()) // the counters are the subject
	var names []string
	for line := range strings.SplitSeq(metricstest.Values(t, metricstest.Registry(opened.Metrics()...), ""), "\n") {
		name, _, _ := strings.Cut(line, "} ")
		names = append(names, name)
	}
	return names
}

// changed returns Services after the change whose write fails.
func (tc *failureCase) changed(store *cluster.Store) *cluster.Store {
	service := cluster.Name{Namespace: "ns", Name: "web"}
	switch {
	case tc.op == "delete":
		store.DeleteService(service)
	case tc.kind == healthCheck:
		return tc.store(true, true) // its flags are others
	default:
		store.SetSlice(&cluster.Slice{
			Name: cluster.Name{Namespace: "ns", Name: "web-1"}, Service: service,
			Ports: []cluster.SlicePort{{Protocol: cluster.TCP, Port: 8080}}, Endpoints: tc.backends,
		})
	}
	return store
}

// The failures of each operation are counted by family, kind and error, as kube-proxy counts them. An error that a
// network is missing is counted as such; that an endpoint or a load balancer is missing is another error. A load
// balancer that is missing at its deletion is none.
func TestFailuresOfEachKind(t *testing.T) {
	reasons := map[error]string{
		hns.ErrNoNetwork: "network_not_found", hns.ErrPortExists: "port_already_exists",
		hns.ErrNotImplemented: "not_implemented", hns.ErrInvalidIP: "invalid_ip", errOdd: "other", hns.ErrNotFound: "other",
	}
	for _, family := range failureFamilies() {
		for _, op := range []string{"create", "update", "delete"} {
			for kind := range family.places {
				for err, reason := range reasons {
					tc := failureCase{family, op, kind, err}
					want := []string{fmt.Sprintf("kubeproxy_sync_proxy_rules_winkernel_lb_%s_failures_total"+
						"{error=%q, ip_family=%q, lb_type=%q", op, reason, family.family, kind.String())}
					if op == "delete" && errors.Is(err, hns.ErrNotFound) && reason == "other" {
						want = []string{""}
					}
					if got := tc.failures(t); !slices.Equal(got, want) {
						t.Errorf("%s of %s, %v: counted %q, want %q", op, tc.places[kind], err, got, want)
					}
				}
			}
		}
	}
}
