package files

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/source/convert"
)

// The kinds of objects that are read.
const (
	kindService       = "Service"
	kindEndpointSlice = "EndpointSlice"
	kindEndpoints     = "Endpoints"
	kindNode          = "Node"
	kindServiceCIDR   = "ServiceCIDR"
	kindPod           = "Pod"
)

// trait describes a kind.
type trait struct {
	group      string
	versions   []string // the preferred one first
	namespaced bool
}

func traitOf(kind string) (trait, bool) {
	switch kind {
	case kindService, kindEndpoints, kindPod:
		return trait{"", []string{"v1"}, true}, true
	case kindNode:
		return trait{"", []string{"v1"}, false}, true
	case kindEndpointSlice:
		return trait{"discovery.k8s.io", []string{"v1"}, true}, true
	case kindServiceCIDR:
		return trait{"networking.k8s.io", []string{"v1", "v1beta1"}, false}, true
	}
	return trait{}, false
}

// apiVersion returns the preferred version of a kind.
func (t trait) apiVersion() string { return strings.TrimPrefix(t.group+"/"+t.versions[0], "/") }

// key identifies an object.
type key struct {
	kind string
	name cluster.Name
}

// String returns the name of the object in problems.
func (k key) String() string { return convert.Object(k.kind, k.name) }

// header has the fields that all objects share.
type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"metadata"`

	depth int // of the lists that it is in
}

// groupVersion returns the two parts of apiVersion.
func (h header) groupVersion() (group, version string) {
	if group, version, ok := strings.Cut(h.APIVersion, "/"); ok {
		return group, version
	}
	return "", h.APIVersion
}

// isRead reports whether objects of the kind are read.
func (h header) isRead() bool {
	t, ok := traitOf(h.Kind)
	group, _ := h.groupVersion()
	return ok && group == t.group
}

// check returns the problem of an object without apiVersion or kind, and false. For a
// kind that looks misspelled, or a version that is not read, it returns a problem and
// true: such an object is ignored.
func (h header) check() (*route.Problem, bool) {
	const reason = "not a Kubernetes object: it needs an apiVersion and a kind"
	switch {
	case h.Kind == "":
		return &route.Problem{Field: "kind", Reason: reason}, false
	case h.APIVersion == "":
		return &route.Problem{Object: h.Kind, Field: "apiVersion", Reason: reason}, false
	case !h.isRead():
		return h.misspelled(), true
	}
	t, _ := traitOf(h.Kind)
	if _, version := h.groupVersion(); !slices.Contains(t.versions, version) {
		return &route.Problem{
			Object: h.name(), Field: "apiVersion", Value: h.APIVersion,
			Reason: "this version is not read; expected " + t.apiVersion(),
		}, true
	}
	return nil, true
}

// name returns the kind and the name in problems.
func (h header) name() string { return strings.TrimSpace(h.Kind + " " + h.Metadata.Name) }

// key returns the key of the object, or the problem that it has no valid name.
func (h header) key() (key, *route.Problem) {
	t, _ := traitOf(h.Kind)
	k := key{kind: h.Kind, name: cluster.Name{Name: h.Metadata.Name}}
	invalid := func(field, value, reason string) (key, *route.Problem) {
		return key{}, &route.Problem{Object: h.Kind, Field: field, Value: value, Reason: reason}
	}
	if t.namespaced {
		k.name.Namespace = h.Metadata.Namespace
		if k.name.Namespace == "" {
			k.name.Namespace = metav1.NamespaceDefault
		}
		if bad := validation.IsDNS1123Label(k.name.Namespace); len(bad) > 0 {
			return invalid("metadata.namespace", k.name.Namespace, bad[0])
		}
	}
	if k.name.Name == "" {
		return invalid("metadata.name", "", "an object needs a name")
	}
	if bad := validation.IsDNS1123Subdomain(k.name.Name); len(bad) > 0 {
		return invalid("metadata.name", k.name.Name, bad[0])
	}
	return k, nil
}

// misspelled returns the problem of an object with a misspelled kind or group: Kubernetes does not have the kind, and
// this package reads some kinds of the group. It returns nil for other objects, which are ignored.
func (h header) misspelled() *route.Problem {
	group, _ := h.groupVersion()
	kinds := strings.Fields(kindsOf(group))
	if kind := strings.TrimSuffix(h.Kind, "List"); len(kinds) == 0 || kind == "" || slices.Contains(kinds, kind) {
		return nil
	}
	return &route.Problem{
		Object: h.name(), Field: "kind", Value: h.Kind,
		Reason: "there is no such kind in " + h.APIVersion + ", so the object is not read",
	}
}

// kindsOf returns all kinds of a group of which this package reads some.
func kindsOf(group string) string {
	switch group {
	case "":
		return `Binding ComponentStatus ConfigMap Endpoints Event LimitRange Namespace Node PersistentVolume
			PersistentVolumeClaim Pod PodTemplate RangeAllocation ReplicationController ResourceQuota Secret Service
			ServiceAccount`
	case "discovery.k8s.io":
		return "EndpointSlice"
	case "networking.k8s.io":
		return "ClusterCIDR Ingress IngressClass IPAddress NetworkPolicy ServiceCIDR"
	}
	return ""
}
