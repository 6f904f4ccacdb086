//go:build linux

package apiserver

import (
	"context"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/test/lab"
)

// Slices returns the EndpointSlices of a Service, one for each family, with pods that serve port 80.
func Slices(service string, pods []*lab.Host) []*discoveryv1.EndpointSlice {
	none, port, yes := "", int32(80), true
	var out []*discoveryv1.EndpointSlice
	for family, like := range map[discoveryv1.AddressType]netip.Addr{
		discoveryv1.AddressTypeIPv4: netip.IPv4Unspecified(), discoveryv1.AddressTypeIPv6: netip.IPv6Unspecified(),
	} {
		s := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Name:   service + "-" + strings.ToLower(string(family)),
				Labels: map[string]string{discoveryv1.LabelServiceName: service},
			},
			AddressType: family,
			Ports:       []discoveryv1.EndpointPort{{Name: &none, Port: &port}},
		}
		for _, pod := range pods {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
				Addresses:  []string{pod.Addr(like).String()},
				Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes},
			})
		}
		out = append(out, s)
	}
	return out
}

// PutSlice creates or updates an EndpointSlice.
func (c *Cluster) PutSlice(ctx context.Context, namespace string, s *discoveryv1.EndpointSlice) error {
	api := c.Client.DiscoveryV1().EndpointSlices(namespace)
	_, err := api.Create(ctx, s, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = api.Update(ctx, s, metav1.UpdateOptions{})
	}
	return err
}

// PutNode creates or updates a Node with these labels and internal addresses, like kubelet.
func (c *Cluster) PutNode(ctx context.Context, name string, labels map[string]string, addrs ...string) error {
	api := c.Client.CoreV1().Nodes()
	node, err := api.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		node, err = api.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	}
	if err != nil {
		return err
	}
	node.Labels = labels
	if node, err = api.Update(ctx, node, metav1.UpdateOptions{}); err != nil {
		return err
	}
	node.Status.Addresses = nil
	for _, a := range addrs {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	_, err = api.UpdateStatus(ctx, node, metav1.UpdateOptions{})
	return err
}
