package files

import (
	stdjson "encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/json"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/source/convert"
	"github.com/sluice-proxy/sluice/internal/strict"
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

// versionOf returns the apiVersion in which objects of a kind are read; empty: they are not read.
func versionOf(kind string) string {
	switch kind {
	case kindService, kindEndpoints, kindPod, kindNode:
		return "v1"
	case kindEndpointSlice:
		return "discovery.k8s.io/v1"
	case kindServiceCIDR:
		return "networking.k8s.io/v1"
	}
	return ""
}

// groupOf returns the group in an apiVersion.
func groupOf(apiVersion string) string { return schema.FromAPIVersionAndKind(apiVersion, "").Group }

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
	version := versionOf(h.Kind)
	return version != "" && groupOf(h.APIVersion) == groupOf(version)
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
	if version := versionOf(h.Kind); h.APIVersion != version {
		return &route.Problem{
			Object: h.name(), Field: "apiVersion", Value: h.APIVersion,
			Reason: "this version is not read; expected " + version,
		}, true
	}
	return nil, true
}

// name returns the kind and the name in problems.
func (h header) name() string { return strings.TrimSpace(h.Kind + " " + h.Metadata.Name) }

// key returns the key of the object, or the problem that it has no valid name.
func (h header) key() (key, *route.Problem) {
	k := key{kind: h.Kind, name: cluster.Name{Name: h.Metadata.Name}}
	invalid := func(field, value, reason string) (key, *route.Problem) {
		return key{}, &route.Problem{Object: h.Kind, Field: field, Value: value, Reason: reason}
	}
	if h.Kind != kindNode && h.Kind != kindServiceCIDR {
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
	return &route.Problem{
		Object: h.name(), Field: "kind", Value: h.Kind,
		Reason: "the object is not read; did you mean " + nearest + " of " + versionOf(nearest) + "?",
	}
}

// object reads one object, or all objects of a list. An item without apiVersion or kind inherits it from its list. It
// returns false if the file has too many.
func (p *parser) object(v value, from header) bool {
	if p.units++; p.units > p.limits.Objects {
		reason := fmt.Sprintf("the file has more than %d documents and items, which is the limit", p.limits.Objects)
		p.content = content{isBroken: true, problems: []route.Problem{{Object: p.name, Reason: reason}}}
		return false
	}
	if string(v.json) == "null" && from.depth == 0 {
		return true // an empty document
	}
	h := header{APIVersion: from.APIVersion, Kind: from.Kind, depth: from.depth}
	if _, ok := p.decode(h.Kind, v, &h, json.DisallowDuplicateFields); !ok {
		return true
	}
	switch problem, ok := h.check(); {
	case !ok:
		p.fail(v, *problem)
	case problem != nil:
		p.add(v, *problem)
	case strings.HasSuffix(h.Kind, "List"):
		return p.list(h, v)
	case h.isRead():
		p.keyed(h, v)
	}
	return true
}

// keyed reads an object of a kind that is read.
func (p *parser) keyed(h header, v value) {
	k, problem := h.key()
	if problem != nil {
		p.fail(v, *problem)
		return
	}
	if err := checkSize("the object", v.json, p.limits.DocumentBytes); err != nil {
		p.fail(v, route.Problem{Object: k.String(), Reason: err.Error()})
		return
	}
	if p.seen[k] {
		p.add(v, route.Problem{Object: k.String(), Reason: "the file has this object twice; the first one counts"})
		return
	}
	p.seen[k] = true
	if converted, ok := p.value(k, v); ok {
		p.objects = append(p.objects, object{k, converted})
	}
}

// list reads the items of a list, of any kinds or of one, one by one.
func (p *parser) list(h header, v value) bool {
	from := header{depth: h.depth + 1}
	if kind := strings.TrimSuffix(h.Kind, "List"); kind != "" {
		from.APIVersion, from.Kind = h.APIVersion, kind
		if !from.isRead() {
			return true
		}
	}
	if from.depth > maxListDepth {
		p.fail(v, route.Problem{
			Object: h.Kind, Reason: fmt.Sprintf("lists are nested more than %d levels deep, which is the limit", maxListDepth),
		})
		return true
	}
	var list struct {
		Items []stdjson.RawMessage `json:"items"`
	}
	if _, ok := p.decode(h.Kind, v, &list, json.DisallowDuplicateFields); !ok {
		return true
	}
	for i, item := range list.Items {
		if !p.object(value{item, v.document, strings.TrimPrefix(fmt.Sprintf("%s.items[%d]", v.path, i), ".")}, from) {
			return false
		}
	}
	return true
}

// decode decodes a part of an object into the value that a pointer leads to. It returns the faults that the options
// make it look for, and false if the value cannot be used: a field has a wrong type, or is repeated.
func (p *parser) decode(name string, v value, into any, o ...json.StrictOption) (unknown []strict.Fault, ok bool) {
	ok = true
	for _, f := range strict.Decode(v.json, into, o...) {
		problem := route.Problem{
			Object: name, Field: f.Path, Value: text.Short(oneLine(f.Value)), Reason: "the field is repeated",
		}
		switch {
		case f.IsUnknown():
			unknown = append(unknown, f)
			continue
		case f.Want != nil:
			problem.Reason = "wrong type: expected " + expected(f.Want)
		}
		p.fail(v, problem)
		ok = false
	}
	return unknown, ok
}

// service is a converted Service with its selector.
type service struct {
	*cluster.Service
	selection *convert.Selection // nil: no selector
}

// value converts an object; nil: it has no meaning to a proxy, false: it cannot be decoded.
func (p *parser) value(k key, v value) (any, bool) {
	switch k.kind {
	case kindService:
		return typed(p, k, v, p.service)
	case kindEndpointSlice:
		return typed(p, k, v, p.slice)
	case kindEndpoints:
		return typed(p, k, v, p.convert.Endpoints)
	case kindPod:
		return typed(p, k, v, p.convert.Pod)
	case kindServiceCIDR:
		return typed(p, k, v, p.convert.ServiceCIDR)
	case kindNode:
		return typed(p, k, v, p.convert.Node)
	}
	return nil, true
}

func (r reader) service(o *corev1.Service) (service, []route.Problem) {
	svc, problems := r.convert.Service(o)
	return service{svc, r.convert.Selection(o, svc)}, problems
}

// slice reads a port without a name as the API server completes it.
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

// typed decodes an object and converts it; a zero value becomes nil. It reports fields
// that the API types do not have, but the object counts: a newer API may have them.
func typed[T any, O pointer[T], V any](p *parser, k key, v value, convert func(O) (V, []route.Problem)) (any, bool) {
	o := O(new(T))
	unknown, ok := p.decode(k.String(), v, o)
	if !ok {
		return nil, false
	}
	o.SetNamespace(k.name.Namespace)
	converted, problems := convert(o)
	for _, f := range unknown {
		problems = append(problems, route.Problem{Object: k.String(), Field: f.Path, Reason: "unknown field, ignored"})
	}
	for _, problem := range problems {
		p.add(v, problem)
	}
	if reflect.ValueOf(&converted).Elem().IsZero() {
		return nil, true
	}
	return converted, true
}

// expected describes the values that a type accepts.
func expected(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[intstr.IntOrString]():
		return "a whole number that fits int32, or a string"
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime]():
		return "a time like 2006-01-02T15:04:05Z"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Slice:
		return "a list"
	case reflect.Int, reflect.Int32, reflect.Int64:
		return "a whole number that fits " + t.String()
	default:
		return "an object"
	}
}
