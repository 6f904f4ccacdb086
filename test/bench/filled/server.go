//go:build linux

// Package filled runs an API server with many Services and EndpointSlices, for the benches of programs that read them.
package filled

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/sluice-proxy/sluice/test/apiserver"
	"github.com/sluice-proxy/sluice/test/lab"
)

// NodeName is the name of the only Node.
const NodeName = "node-a"

const nodeAddr = "192.168.0.2"

// Server is an API server with many Services.
type Server struct {
	*apiserver.Cluster

	API      kubernetes.Interface // without a limit on requests
	Services int
}

// Start starts an API server with n Services. The EndpointSlice of Service i is slice(i).
func Start(t lab.T, n int, slice func(i int) runtime.Object) (*Server, error) {
	s := &Server{Cluster: apiserver.StartWith(t, apiserver.Options{ServiceCIDR4: ServiceCIDR}), Services: n}
	config := rest.CopyConfig(s.Config)
	config.QPS, config.ContentType = -1, runtime.ContentTypeProtobuf
	var err error
	if s.API, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	if err := s.createNamespaceAndNode(ctx); err != nil {
		return nil, err
	}
	if err := fill(ctx, s.EtcdURL(), n, slice); err != nil {
		return nil, err
	}
	return s, s.Served(ctx)
}

func (s *Server) createNamespaceAndNode(ctx context.Context) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}}
	if _, err := s.API.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return err
	}
	return s.PutNode(ctx, NodeName, nil, nodeAddr)
}

// Served waits until the API server serves all objects from its watch cache.
func (s *Server) Served(ctx context.Context) error {
	last := ServiceName(s.Services - 1)
	for {
		_, err := s.API.DiscoveryV1().EndpointSlices(Namespace).Get(ctx, SliceName(s.Services-1, 0),
			metav1.GetOptions{ResourceVersion: "0"})
		if err == nil {
			_, err = s.API.CoreV1().Services(Namespace).Get(ctx, last, metav1.GetOptions{ResourceVersion: "0"})
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
