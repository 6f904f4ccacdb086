package convert

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Node converts a Node. Its internal addresses come before the external ones;
// the first of a family is the node's primary one.
func (c Converter) Node(node *corev1.Node) (*cluster.Node, []route.Problem) {
	n := &notes{object: Object("Node", cluster.Name{Name: node.Name})}
	out := &cluster.Node{
		Name:    c.Strings.Of(node.Name),
		Zone:    c.Strings.Of(node.Labels[corev1.LabelTopologyZone]),
		Leaving: node.DeletionTimestamp != nil || slices.ContainsFunc(node.Spec.Taints, toBeDeleted),
	}
	var addrs unique[netip.Addr]
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for i, in := range node.Status.Addresses {
			if in.Type != kind {
				continue
			}
			a, ok := parseAddr(in.Address)
			if !ok {
				n.add(at("status.addresses", i)+".address", in.Address, wantAddress)
				continue
			}
			addrs.add(a)
		}
	}
	out.Addresses = addrs.list
	cidrs, field := node.Spec.PodCIDRs, "spec.podCIDRs"
	if len(cidrs) == 0 && node.Spec.PodCIDR != "" {
		cidrs, field = []string{node.Spec.PodCIDR}, "spec.podCIDR"
	}
	out.PodCIDRs = prefixes(cidrs, field, n)
	return out, n.list()
}

// toBeDeleted is the taint that the cluster autoscaler adds before it removes the
// node, with any value and effect (KEP-3836).
func toBeDeleted(t corev1.Taint) bool { return t.Key == "ToBeDeletedByClusterAutoscaler" }

// ServiceCIDR converts a ServiceCIDR.
func (c Converter) ServiceCIDR(sc *networkingv1.ServiceCIDR) ([]netip.Prefix, []route.Problem) {
	n := &notes{object: Object("ServiceCIDR", cluster.Name{Name: sc.Name})}
	return prefixes(sc.Spec.CIDRs, "spec.cidrs", n), n.list()
}

func prefixes(texts []string, field string, n *notes) []netip.Prefix {
	var out unique[netip.Prefix]
	for i, text := range texts {
		p, ok := parsePrefix(text)
		if !ok {
			n.add(at(field, i), text, wantPrefix)
			continue
		}
		out.add(p)
	}
	return out.list
}
