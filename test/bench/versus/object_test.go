//go:build linux

package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
)

// TestAddresses verifies that all addresses are unique.
func TestAddresses(t *testing.T) {
	seen := map[netip.Addr]string{netip.MustParseAddr(nodeAddr): "the node", netip.MustParseAddr(clientAddr): "the client"}
	take := func(a netip.Addr, who string) {
		if seen[a] != "" {
			t.Fatalf("%s is that of %s and of %s", a, seen[a], who)
		}
		seen[a] = who
	}
	services := netip.MustParsePrefix(serviceCIDR)
	for _, i := range []int{0, 1, 31, 32, 255, 256, 65_535, 65_536, largest - 1, rollingService} {
		take(clusterIP(i), serviceName(i))
		if !services.Contains(clusterIP(i)) {
			t.Errorf("%s is not in %s", clusterIP(i), services)
		}
		for j := range 6 {
			take(podIP(i, j), "a pod of "+serviceName(i))
		}
	}
	for _, j := range []int{0, 255, 256, 4999} {
		take(rollingIP(0, j), "an old pod")
		take(rollingIP(1, j), "a new pod")
	}
	for _, a := range podAddrs() {
		take(a, "a real pod")
	}
}

func TestProbedServicesAreSpreadOverAll(t *testing.T) {
	got := spreadOver(1000)
	if len(got) != probes || got[0] != 0 || got[probes-1] != 999 || !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != probes {
		t.Errorf("got %v", got)
	}
}

// memoryEtcd is an etcd in memory that accepts transactions of at most 128 steps.
type memoryEtcd struct {
	mu   sync.Mutex
	held map[string][]byte
}

func (m *memoryEtcd) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body struct{ Success []put }
	text, _ := io.ReadAll(r.Body)
	if err := json.Unmarshal(text, &body); err != nil || r.URL.Path != "/v3/kv/txn" || len(body.Success) > 128 {
		http.Error(w, "too many operations", http.StatusBadRequest)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range body.Success {
		m.held[string(p.RequestPut.Key)] = p.RequestPut.Value
	}
}

// TestFill reads the objects back like the API server.
func TestFill(t *testing.T) {
	m := &memoryEtcd{held: map[string][]byte{}}
	server := httptest.NewServer(m)
	defer server.Close()
	want := sliceObject(7, 0, podIP(7, 0), podIP(7, 1), podIP(7, 2))
	err := fill(t.Context(), server.URL, 101, func(i int) runtime.Object {
		if i == 7 {
			return want
		}
		return sliceObject(i, 0, podIP(i, 0), podIP(i, 1), podIP(i, 2))
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(m.held) != 3*101 {
		t.Errorf("etcd has %d objects, want three for each Service", len(m.held))
	}
	got, _, err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Decode(m.held["/registry/endpointslices/bench/service-0000007-00000"], nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	got.GetObjectKind().SetGroupVersionKind(want.GroupVersionKind())
	want.CreationTimestamp = want.CreationTimestamp.Rfc3339Copy()
	if diff := cmp.Diff(runtime.Object(want), got); diff != "" {
		t.Errorf("an EndpointSlice differs (-written, +read):\n%s", diff)
	}
}

func TestFillReturnsTheErrorOfEtcd(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "mvcc: database space exceeded", http.StatusInsufficientStorage)
	}))
	defer server.Close()
	err := fill(context.Background(), server.URL, 3, func(i int) runtime.Object { return sliceObject(i, 0) })
	if err == nil || !strings.Contains(err.Error(), "write 9 objects to etcd: 507") || !strings.Contains(err.Error(), "space exceeded") {
		t.Errorf("got %v", err)
	}
}

// TestBatches follows a rolling update: every write replaces a batch of one
// slice, and at the end all endpoints are new.
func TestBatches(t *testing.T) {
	fresh := func(list []netip.Addr) (n int) {
		for _, a := range list {
			if a.As4()[1] == 182 {
				n++
			}
		}
		return n
	}
	list := batches(300)
	if len(list) != 300/perBatch {
		t.Fatalf("%d writes, want %d", len(list), 300/perBatch)
	}
	for i, b := range list {
		slice, part := i/(perSlice/perBatch), i%(perSlice/perBatch)+1
		if b.slice != slice || len(b.addrs) != perSlice || fresh(b.addrs) != part*perBatch {
			t.Errorf("write %d is of slice %d with %d endpoints, %d of them new", i, b.slice, len(b.addrs), fresh(b.addrs))
		}
	}
}
