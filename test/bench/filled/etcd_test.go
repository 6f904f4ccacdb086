//go:build linux

package filled

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
)

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
	want := Slice(7, 0, PodIP(7, 0), PodIP(7, 1), PodIP(7, 2))
	err := fill(t.Context(), server.URL, 101, func(i int) runtime.Object {
		if i == 7 {
			return want
		}
		return Slice(i, 0, PodIP(i, 0), PodIP(i, 1), PodIP(i, 2))
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
	err := fill(context.Background(), server.URL, 3, func(i int) runtime.Object { return Slice(i, 0) })
	if err == nil || !strings.Contains(err.Error(), "write 9 objects to etcd: 507") || !strings.Contains(err.Error(), "space exceeded") {
		t.Errorf("got %v", err)
	}
}
