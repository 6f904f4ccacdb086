package convert

import (
	"net/netip"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// weights reads the weights by node or address. It leaves out wrong entries: their endpoints keep weight 1.
func (c Converter) weights(svc *corev1.Service, n *notes) map[string]uint16 {
	var all map[string]uint16
	for entry := range strings.SplitSeq(svc.Annotations[AnnotationWeights], ",") {
		entry = strings.TrimSpace(entry)
		if entry == "" {
			continue
		}
		key, weight, reason := parseWeight(entry)
		if _, twice := all[key]; twice && reason == "" {
			reason = "ignored: an earlier entry has the same node or address"
		}
		if reason != "" {
			n.annotation(AnnotationWeights, entry, reason)
			continue
		}
		if all == nil {
			all = map[string]uint16{}
		}
		if _, err := netip.ParseAddr(key); err != nil { // names of nodes repeat, addresses do not
			key = c.Strings.Of(key)
		}
		all[key] = weight
	}
	return all
}

// sliceWeight returns the weight that a slice gives its endpoints; nil: none.
func sliceWeight(es *discoveryv1.EndpointSlice, n *notes) *uint16 {
	text, has := es.Annotations[AnnotationSliceWeight]
	if !has {
		return nil
	}
	w, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		n.annotation(AnnotationSliceWeight, text, "ignored: expected a weight from 0 to 65535")
		return nil
	}
	return new(uint16(w))
}

// parseWeight parses "NODE=WEIGHT" or "ADDRESS=WEIGHT". IPVS takes larger numbers, but ipvsadm does not.
func parseWeight(entry string) (key string, weight uint16, reason string) {
	key, number, _ := strings.Cut(entry, "=")
	key, number = strings.TrimSpace(key), strings.TrimSpace(number)
	w, err := strconv.ParseUint(number, 10, 16)
	if err != nil {
		return "", 0, "ignored: expected NODE=WEIGHT or ADDRESS=WEIGHT, with a weight from 0 to 65535"
	}
	if a, err := netip.ParseAddr(key); err == nil {
		return a.Unmap().WithZone("").String(), uint16(w), ""
	}
	if len(validation.IsDNS1123Subdomain(key)) > 0 {
		return "", 0, "ignored: expected the name of a Node, or the address of an endpoint, before \"=\""
	}
	return key, uint16(w), ""
}
