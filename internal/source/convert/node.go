package convert

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Node converts a Node. Internal addresses come first; the first of a family is the node's primary one.
func (c Converter) Node(node *corev1.Node) (*cluster.Node, []route.Problem) {
	n := &notes{object: Object("Node", cluster.Name{Name: node.Name})}
	// The cluster autoscaler is about to remove a node with this taint (KEP-3836).
	toBeDeleted := func(t corev1.Taint) bool { return t.Key == "ToBeDeletedByClusterAutoscaler" }
	out := &cluster.Node{
		Name:    c.Strings.Of(node.Name),
		Zone:    c.Strings.Of(node.Labels[corev1.LabelTopologyZone]),
		Leaving: node.DeletionTimestamp != nil || slices.ContainsFunc(node.Spec.Taints, toBeDeleted),
	}
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		list := texts{field: "status.addresses", suffix: ".address", values: make([]string, len(node.Status.Addresses))}
		for i, in := range node.Status.Addresses {
			if in.Type == kind {
				list.values[i] = in.Address
			}
		}
		out.Addresses = append(out.Addresses, n.addresses(list, func(netip.Addr) string { return "" })...)
	}
	out.Addresses = unique(out.Addresses)
	cidrs, field := node.Spec.PodCIDRs, "spec.podCIDRs"
	if len(cidrs) == 0 && node.Spec.PodCIDR != "" {
		cidrs, field = []string{node.Spec.PodCIDR}, "spec.podCIDR"
	}
	out.PodCIDRs = n.prefixes(texts{field: field, values: cidrs})
	return out, n.list()
}

// ServiceCIDR converts a ServiceCIDR.
func (c Converter) ServiceCIDR(sc *networkingv1.ServiceCIDR) ([]netip.Prefix, []route.Problem) {
	n := &notes{object: Object("ServiceCIDR", cluster.Name{Name: sc.Name})}
	return n.prefixes(texts{field: "spec.cidrs", values: sc.Spec.CIDRs}), n.list()
}
