package manifest

import (
	stdjson "encoding/json"
	"errors"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
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

// trait is what there is to know of a kind.
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

// header is what all objects begin with.
type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"metadata"`
}

// items is what lists have.
type items struct {
	Items []stdjson.RawMessage `json:"items"`
}

// groupVersion returns the two parts of apiVersion.
func (h header) groupVersion() (group, version string) {
	if group, version, ok := strings.Cut(h.APIVersion, "/"); ok {
		return group, version
	}
	return "", h.APIVersion
}

// key returns which object it is, or what is wrong with that.
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

// service is what a Service says.
type service struct {
	*cluster.Service
	selection *convert.Selection // nil: no selector
}

// reader turns the text of objects into values.
type reader struct {
	convert  convert.Converter
	nodeName string
}

// value returns the value an object stands for, nil if that is nothing, and
// what is wrong with the object. An error: it cannot be read.
func (r reader) value(k key, text []byte) (any, []route.Problem, error) {
	switch k.kind {
	case kindService:
		return read(k, text, func(o *corev1.Service) (any, []route.Problem) {
			o.Namespace = k.name.Namespace
			svc, problems := r.convert.Service(o)
			return service{svc, r.convert.Selection(o)}, problems
		})
	case kindEndpointSlice:
		return read(k, text, func(o *discoveryv1.EndpointSlice) (any, []route.Problem) {
			o.Namespace = k.name.Namespace
			for i := range o.Ports {
				if o.Ports[i].Name == nil {
					o.Ports[i].Name = new("") // as the API server completes it
				}
			}
			return orNothing(r.convert.Slice(o))
		})
	case kindEndpoints:
		return read(k, text, func(o *corev1.Endpoints) (any, []route.Problem) {
			o.Namespace = k.name.Namespace
			slices, problems := r.convert.Endpoints(o)
			if slices == nil {
				return nil, problems
			}
			return slices, problems
		})
	case kindPod:
		return read(k, text, func(o *corev1.Pod) (any, []route.Problem) {
			o.Namespace = k.name.Namespace
			return orNothing(r.convert.Pod(o))
		})
	case kindServiceCIDR:
		return read(k, text, func(o *networkingv1.ServiceCIDR) (any, []route.Problem) {
			cidrs, problems := r.convert.ServiceCIDR(o)
			return cidrs, problems
		})
	case kindNode:
		if k.name.Name != r.nodeName {
			return nil, nil, nil
		}
		return read(k, text, func(o *corev1.Node) (any, []route.Problem) { return orNothing(r.convert.Node(o)) })
	}
	return nil, nil, nil
}

// orNothing makes a nil pointer a nil value.
func orNothing[T any](v *T, problems []route.Problem) (any, []route.Problem) {
	if v == nil {
		return nil, problems
	}
	return v, problems
}

// read decodes an object and converts it. Fields the API types do not have
// are a problem, not an error: a newer API may have them.
func read[T any](k key, text []byte, to func(*T) (any, []route.Problem)) (any, []route.Problem, error) {
	var o T
	odd, err := json.UnmarshalStrict(text, &o)
	if err != nil {
		return nil, nil, err
	}
	value, problems := to(&o)
	for _, e := range odd {
		problems = append(problems, oddField(k, e))
	}
	return value, problems, nil
}

// oddField says that a field is unknown or there twice.
func oddField(k key, err error) route.Problem {
	p := route.Problem{Object: k.String(), Reason: err.Error()}
	if field, ok := errors.AsType[json.FieldError](err); ok {
		p.Field = field.FieldPath()
		what, _, _ := strings.Cut(err.Error(), " \"")
		p.Reason = what + ", ignored"
	}
	return p
}

// unreadable says why an object cannot be read.
func unreadable(object string, err error) route.Problem {
	p := route.Problem{Object: object, Reason: err.Error()}
	if wrong, ok := errors.AsType[*stdjson.UnmarshalTypeError](err); ok {
		p.Field, p.Value = wrong.Field, wrong.Value
		p.Reason = "wrong type: expected " + expected(wrong.Type)
	}
	return p
}

// expected says in plain words what a type wants.
func expected(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return expected(t.Elem())
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Slice:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	default:
		return "a whole number that fits " + t.String()
	}
}
