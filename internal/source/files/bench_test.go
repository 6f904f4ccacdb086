package files

import (
	"bytes"
	"fmt"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// manyServices returns a file with n Services of three endpoints each.
func manyServices(n int) []byte {
	var b strings.Builder
	for i := range n {
		ip := fmt.Sprintf("%d.%d.%d", i>>16, i>>8&255, i&255)
		fmt.Fprintf(&b, `---
apiVersion: v1
kind: Service
metadata:
  name: s%[1]d
  namespace: default
spec:
  clusterIP: 10.%[2]s
  clusterIPs:
  - 10.%[2]s
  ipFamilies:
  - IPv4
  ports:
  - name: http
    port: 80
    protocol: TCP
    targetPort: 8080
  selector:
    app: s%[1]d
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: s%[1]d-x
  namespace: default
  labels:
    kubernetes.io/service-name: s%[1]d
addressType: IPv4
ports:
- name: http
  port: 8080
  protocol: TCP
endpoints:
- addresses: [11.%[2]s]
  nodeName: n1
- addresses: [12.%[2]s]
  nodeName: n2
- addresses: [13.%[2]s]
  nodeName: n3
`, i, ip)
	}
	return []byte(b.String())
}

// BenchmarkLoad reads a file of 10,000 Services with three endpoints each.
func BenchmarkLoad(b *testing.B) {
	data := manyServices(10000)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		store := cluster.NewStore()
		apply(store, state{}, stateOfText(string(data)))
		if n := len(store.ServiceNames()); n != 10000 {
			b.Fatalf("%d services", n)
		}
	}
}

// BenchmarkChange changes one Service in such a file.
func BenchmarkChange(b *testing.B) {
	data := manyServices(10000)
	other := bytes.Replace(data, []byte("port: 80\n"), []byte("port: 81\n"), 1)
	store, last := cluster.NewStore(), stateOfText(string(data))
	apply(store, state{}, last)
	store.Take()
	for b.Loop() {
		data, other = other, data
		next := stateOfText(string(data))
		apply(store, last, next)
		last = next
		if n := len(store.Take().Services); n != 1 {
			b.Fatalf("%d services touched", n)
		}
	}
}

// BenchmarkLargestFile reads a file near the limits, and reports the growth of the heap.
func BenchmarkLargestFile(b *testing.B) {
	defer debug.SetGCPercent(debug.SetGCPercent(50)) // as in the daemon
	const object = `{"apiVersion":"v1","kind":"Service","metadata":{"name":"s%d"},"spec":{"clusterIP":"10.%d.%d.%d",` +
		`"selector":{"app":"x"},` +
		`"ports":[{"name":"http","port":80,"targetPort":8080,"protocol":"TCP"},{"name":"https","port":443,` +
		`"targetPort":8443,"protocol":"TCP"}]}}` + "\n"
	var text bytes.Buffer
	for i := range DaemonLimits().Objects {
		fmt.Fprintf(&text, object, i, i>>16, i>>8&255, i&255)
	}
	b.SetBytes(int64(text.Len()))
	var most uint64
	for b.Loop() {
		most = max(most, growth(func() {
			s := New(cluster.NewStore(), Options{Paths: []string{"-"}, Stdin: bytes.NewReader(text.Bytes())})
			if err := s.Load(); err != nil || s.State().Trouble != "" {
				b.Fatal(err, s.State().Trouble)
			}
		}))
	}
	b.ReportMetric(float64(most>>20), "MB")
}

// growth runs a function and returns the maximum growth of the heap in bytes.
func growth(f func()) uint64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	runtime.GC()
	metrics.Read(sample)
	begin, most := sample[0].Value.Uint64(), sample[0].Value.Uint64()
	stop := make(chan struct{})
	var sampling sync.WaitGroup
	sampling.Go(func() {
		for tick := time.NewTicker(time.Millisecond); ; {
			metrics.Read(sample)
			most = max(most, sample[0].Value.Uint64())
			select {
			case <-stop:
				return
			case <-tick.C:
			}
		}
	})
	f()
	close(stop)
	sampling.Wait()
	return most - begin
}
