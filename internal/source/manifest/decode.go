package manifest

import (
	"errors"
	"reflect"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/json"

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
	versions   []string
	namespaced bool
}

// traitOf returns the trait of a kind that is read.
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

// items are the items of a list.
type items struct {
	Items list `json:"items"`
}

// list is the text of a list, or of null.
type list []byte

// UnmarshalJSON keeps the text.
func (l *list) UnmarshalJSON(text []byte) error {
	if len(text) == 0 || text[0] != '[' && string(text) != "null" {
		return errors.New("not a list")
	}
	*l = append((*l)[:0], text...)
	return nil
}

// groupVersion returns the two parts of apiVersion.
func (h header) groupVersion() (group, version string) {
	if group, version, ok := strings.Cut(h.APIVersion, "/"); ok {
		return group, version
	}
	return "", h.APIVersion
}

// key returns the key of the object, or an error if the header has none.
func (h header) key(t trait) (key, *route.Problem) {
	k := key{kind: h.Kind, name: cluster.Name{Name: h.Metadata.Name}}
	if t.namespaced {
		k.name.Namespace = h.Metadata.Namespace
		if k.name.Namespace == "" {
			k.name.Namespace = metav1.NamespaceDefault
		}
		if bad := validation.IsDNS1123Label(k.name.Namespace); len(bad) > 0 {
			return key{}, &route.Problem{Object: h.Kind, Field: "metadata.namespace", Value: k.name.Namespace, Reason: bad[0]}
		}
	}
	if k.name.Name == "" {
		return key{}, &route.Problem{Object: h.Kind, Field: "metadata.name", Reason: "an object needs a name"}
	}
	if bad := validation.IsDNS1123Subdomain(k.name.Name); len(bad) > 0 {
		return key{}, &route.Problem{Object: h.Kind, Field: "metadata.name", Value: k.name.Name, Reason: bad[0]}
	}
	return k, nil
}

// service is a converted Service with its selector.
type service struct {
	*cluster.Service
	selection *convert.Selection // nil: no selector
}

// reader turns the text of objects into values.
type reader struct {
	convert  convert.Converter
	nodeName string
	limits   Limits      // zero: DaemonLimits
	stopped  func() bool // may be nil
	heavy    *sync.Mutex // held while a large document is read; may be nil

	tally *tally // of the file that is read
}

// value converts an object. It returns nil for one without meaning to a proxy, the
// problems of the object, and an error if the object cannot be read.
func (r reader) value(k key, text []byte) (any, []route.Problem, *route.Problem) {
	switch k.kind {
	case kindService:
		return read(k, text, r.service)
	case kindEndpointSlice:
		return read(k, text, r.slice)
	case kindEndpoints:
		return read(k, text, r.convert.Endpoints)
	case kindPod:
		return read(k, text, r.convert.Pod)
	case kindServiceCIDR:
		return read(k, text, r.convert.ServiceCIDR)
	case kindNode:
		if k.name.Name == r.nodeName {
			return read(k, text, r.convert.Node)
		}
	}
	return nil, nil, nil
}

func (r reader) service(o *corev1.Service) (service, []route.Problem) {
	svc, problems := r.convert.Service(o)
	return service{svc, r.convert.Selection(o, svc)}, problems
}

// slice takes a port without a name as the API server completes it.
func (r reader) slice(o *discoveryv1.EndpointSlice) (*cluster.Slice, []route.Problem) {
	for i := range o.Ports {
		if o.Ports[i].Name == nil {
			o.Ports[i].Name = new("")
		}
	}
	return r.convert.Slice(o)
}

// pointer is a pointer to an API object of type T.
type pointer[T any] interface {
	*T
	metav1.Object
}

// read decodes an object and converts it; a zero value is nothing. Fields the
// API types do not have are a problem, not an error: a newer API may have them.
func read[T any, O pointer[T], V any](k key, text []byte, convert func(O) (V, []route.Problem)) (any, []route.Problem, *route.Problem) {
	o := O(new(T))
	odd, err := json.UnmarshalStrict(text, o)
	if err != nil {
		return nil, nil, unreadable(k.String(), text, o, err)
	}
	o.SetNamespace(k.name.Namespace)
	value, problems := convert(o)
	for _, e := range odd {
		problems = append(problems, oddField(k, e))
	}
	if reflect.ValueOf(&value).Elem().IsZero() {
		return nil, problems, nil
	}
	return value, problems, nil
}

// oddField is the problem of an unknown field.
func oddField(k key, err error) route.Problem {
	p := route.Problem{Object: k.String(), Reason: err.Error()}
	if field, ok := errors.AsType[json.FieldError](err); ok {
		p.Field = field.FieldPath()
		what, _, _ := strings.Cut(err.Error(), " \"")
		p.Reason = what + ", ignored"
	}
	return p
}
