//go:build linux

package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"golang.org/x/sync/errgroup"
)

// podPort is where pods listen, and where endpoints are said to.
const podPort = 8080

// writers is how many requests are under way at a time.
const writers = 16

// serviceTarget is Service i in the API server, in 172.30.0.0/16.
func serviceTarget(i int) netip.AddrPort {
	n := i + 256 // the API server's own Service is at the beginning
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{172, 30, byte(n >> 8), byte(n)}), 80)
}

// populate makes the objects in the API server.
func (b *clusterBench) populate() error {
	if b.o.cluster > 60_000 {
		return fmt.Errorf("%s has no room for %d Services", "172.30.0.0/16", b.o.cluster)
	}
	config := rest.CopyConfig(b.Config)
	config.QPS, config.ContentType = -1, "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx := context.Background()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return err
	}
	began := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i := range b.o.cluster {
		group.Go(func() error {
			if _, err := client.CoreV1().Services(namespace).Create(ctx, serviceObject(i), metav1.CreateOptions{}); err != nil {
				return err
			}
			_, err := client.DiscoveryV1().EndpointSlices(namespace).Create(ctx, b.sliceObject(i, b.pods[0].Addr4()), metav1.CreateOptions{})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	b.t.Logf("%d Services and EndpointSlices made in %v", b.o.cluster, time.Since(began).Round(time.Second))
	return nil
}

func serviceObject(i int) *corev1.Service {
	single := corev1.IPFamilyPolicySingleStack
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: serviceName(i), Labels: map[string]string{"app": serviceName(i)}},
		Spec: corev1.ServiceSpec{
			ClusterIP: serviceTarget(i).Addr().String(), IPFamilyPolicy: &single,
			Selector: map[string]string{"app": serviceName(i)},
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80}},
		},
	}
}

// sliceObject is the EndpointSlice of Service i. A probed Service has one
// endpoint, a real pod; the others have three that nobody calls.
func (b *clusterBench) sliceObject(i int, pod netip.Addr) *discoveryv1.EndpointSlice {
	http, port, yes, no, node := "http", int32(podPort), true, false, "node-a"
	addrs := []netip.Addr{pod}
	if !slices.Contains(b.probed, i) {
		addrs = []netip.Addr{podIP(i, 0), podIP(i, 1), podIP(i, 2)}
	}
	es := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: serviceName(i) + "-abcde",
			Labels: map[string]string{
				discoveryv1.LabelServiceName: serviceName(i),
				discoveryv1.LabelManagedBy:   "endpointslice-controller.k8s.io",
			},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &http, Port: &port}},
	}
	for j, a := range addrs {
		es.Endpoints = append(es.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{a.String()},
			NodeName:   &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: fmt.Sprintf("%s-%d", serviceName(i), j)},
		})
	}
	return es
}

// move puts a probed Service on another pod.
func (b *clusterBench) move(ctx context.Context, i int, pod netip.Addr) error {
	_, err := b.Client.DiscoveryV1().EndpointSlices(namespace).Update(ctx, b.sliceObject(i, pod), metav1.UpdateOptions{})
	return err
}
