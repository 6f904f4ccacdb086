//go:build linux

package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/sluice-proxy/sluice/test/apiserver"
	"github.com/sluice-proxy/sluice/test/lab"
)

// probes is the number of Services with real pods, spread over all.
const probes = 20

// The hosts of all measurements.
const (
	nodeName   = "node-a"
	nodeAddr   = "192.168.0.2"
	clientAddr = "10.180.0.9"
)

// podAddrs returns the pods of the probed Services.
func podAddrs() [2]netip.Addr {
	return [2]netip.Addr{netip.MustParseAddr("10.180.1.1"), netip.MustParseAddr("10.180.1.2")}
}

// server is an API server with many Services.
type server struct {
	*apiserver.Cluster
	api      kubernetes.Interface // without a limit on requests
	services int
	probed   []int // their numbers
}

// spreadOver returns which of n Services are probed.
func spreadOver(n int) []int {
	out := make([]int, probes)
	for i := range out {
		out[i] = i * (n - 1) / (probes - 1)
	}
	return out
}

func newServer(t lab.T, n int) (*server, error) {
	s := &server{
		Cluster:  apiserver.StartWith(t, apiserver.Options{ServiceCIDR4: serviceCIDR}),
		services: n, probed: spreadOver(n),
	}
	config := rest.CopyConfig(s.Config)
	config.QPS, config.ContentType = -1, "application/vnd.kubernetes.protobuf"
	var err error
	if s.api, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	return s, s.populate()
}

// populate creates the objects.
func (s *server) populate() error {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	began := time.Now()
	if err := s.createNamespaceAndNode(ctx); err != nil {
		return err
	}
	if err := fill(ctx, s.EtcdURL(), s.services, s.slice); err != nil {
		return err
	}
	if err := s.served(ctx); err != nil {
		return err
	}
	progress("%d Services and EndpointSlices are in the API server after %v", s.services, time.Since(began).Round(100*time.Millisecond))
	return nil
}

// createNamespaceAndNode creates the namespace and the Node.
func (s *server) createNamespaceAndNode(ctx context.Context) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := s.api.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return err
	}
	return s.PutNode(ctx, nodeName, nil, nodeAddr)
}

// served waits until the API server serves the objects that were written to etcd.
func (s *server) served(ctx context.Context) error {
	last := serviceName(s.services - 1)
	for {
		_, err := s.api.DiscoveryV1().EndpointSlices(namespace).Get(ctx, sliceName(s.services-1, 0), metav1.GetOptions{ResourceVersion: "0"})
		if err == nil {
			_, err = s.api.CoreV1().Services(namespace).Get(ctx, last, metav1.GetOptions{ResourceVersion: "0"})
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the API server does not serve %s: %w", last, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// slice returns the EndpointSlice of Service i: probed ones have one real pod,
// the others three endpoints without pods.
func (s *server) slice(i int) runtime.Object {
	if slices.Contains(s.probed, i) {
		return sliceObject(i, 0, podAddrs()[0])
	}
	return sliceObject(i, 0, podIP(i, 0), podIP(i, 1), podIP(i, 2))
}

// set updates EndpointSlice n of Service i. It gives up after 30 s.
func (s *server) set(ctx context.Context, i, n int, addrs ...netip.Addr) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	es := sliceObject(i, n, addrs...)
	es.UID, es.CreationTimestamp = "", metav1.Time{}
	if _, err := s.api.DiscoveryV1().EndpointSlices(namespace).Update(ctx, es, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("write EndpointSlice %s: %w", es.Name, err)
	}
	return nil
}
