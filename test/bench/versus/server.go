//go:build linux

package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sluice-proxy/sluice/test/bench/filled"
	"github.com/sluice-proxy/sluice/test/lab"
)

// probes is the number of Services with real pods, spread over all.
const probes = 20

// clientAddr is the address of the pod that connects.
const clientAddr = "10.180.0.9"

// rollingService is the number of the Service of the rolling update.
const rollingService = filled.Largest

// podAddrs returns the pods of the probed Services.
func podAddrs() [2]netip.Addr {
	return [2]netip.Addr{netip.MustParseAddr("10.180.1.1"), netip.MustParseAddr("10.180.1.2")}
}

// server is an API server with many Services. Clients probe some of them.
type server struct {
	*filled.Server

	probed []int // their numbers
}

// spreadOver returns which of n Services are probed.
func spreadOver(n int) []int {
	out := make([]int, probes)
	for i := range out {
		out[i] = i * (n - 1) / (probes - 1)
	}
	return out
}

// newServer starts a server. Probed Services have one real pod, the others three endpoints without pods.
func newServer(t lab.T, n int) (*server, error) {
	s, began := &server{probed: spreadOver(n)}, time.Now()
	var err error
	s.Server, err = filled.Start(t, n, func(i int) runtime.Object {
		if slices.Contains(s.probed, i) {
			return filled.Slice(i, 0, podAddrs()[0])
		}
		return filled.Slice(i, 0, filled.PodIP(i, 0), filled.PodIP(i, 1), filled.PodIP(i, 2))
	})
	if err != nil {
		return nil, err
	}
	progress("%d Services and EndpointSlices are in the API server after %v", n,
		time.Since(began).Round(100*time.Millisecond))
	return s, nil
}

// set updates EndpointSlice n of Service i. It gives up after 30 s.
func (s *server) set(ctx context.Context, i, n int, addrs ...netip.Addr) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	es := filled.Slice(i, n, addrs...)
	es.UID, es.CreationTimestamp = "", metav1.Time{}
	if _, err := s.API.DiscoveryV1().EndpointSlices(filled.Namespace).Update(ctx, es, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("write EndpointSlice %s: %w", es.Name, err)
	}
	return nil
}
