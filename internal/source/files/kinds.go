package files

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/source/convert"
	"github.com/sluice-proxy/sluice/internal/text"
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
	apiVersion string
	namespaced bool
}

func traitOf(kind string) (trait, bool) {
	switch kind {
	case kindService, kindEndpoints, kindPod:
		return trait{"v1", true}, true
	case kindNode:
		return trait{"v1", false}, true
	case kindEndpointSlice:
		return trait{"discovery.k8s.io/v1", true}, true
	case kindServiceCIDR:
		return trait{"networking.k8s.io/v1", false}, true
	}
	return trait{}, false
}

// groupOf returns the group in an apiVersion.
func groupOf(apiVersion string) string {
	if group, _, ok := strings.Cut(apiVersion, "/"); ok {
		return group
	}
	return ""
}

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

// isRead reports whether objects of the kind are read.
func (h header) isRead() bool {
	t, ok := traitOf(h.Kind)
	return ok && groupOf(h.APIVersion) == groupOf(t.apiVersion)
}

// check returns the problem of an object without apiVersion or kind, and false. For a kind that looks like one that is
// read, or a version that is not read, it returns a problem and true: such an object is ignored.
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
	if t, _ := traitOf(h.Kind); h.APIVersion != t.apiVersion {
		return &route.Problem{
			Object: h.name(), Field: "apiVersion", Value: h.APIVersion,
			Reason: "this version is not read; expected " + t.apiVersion,
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

// misspelled returns the problem of an object whose kind looks like one that is read, in a group of which kinds are
// read. It returns nil for other objects, which are ignored.
func (h header) misspelled() *route.Problem {
	kind := strings.TrimSuffix(h.Kind, "List")
	nearest := text.Nearest(kind, []string{
		kindService, kindEndpointSlice, kindEndpoints, kindNode, kindServiceCIDR, kindPod,
	})
	isOurs := slices.Contains([]string{"", "discovery.k8s.io", "networking.k8s.io"}, groupOf(h.APIVersion))
	if nearest == "" || !isOurs || (header{APIVersion: h.APIVersion, Kind: kind}).isRead() {
		return nil
	}
	t, _ := traitOf(nearest)
	return &route.Problem{
		Object: h.name(), Field: "kind", Value: h.Kind,
		Reason: "the object is not read; did you mean " + nearest + " of " + t.apiVersion + "?",
	}
}
