package manifest

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/json"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/source/convert"
)

// object reads one object, or all objects of a list. An item without apiVersion or
// kind has those of its list.
func (r reader) object(text []byte, from header) content {
	h, text, repeated, err := r.header(text, from)
	if h.Kind == "" || h.APIVersion == "" {
		return r.failed(key{}, notAnObject(h, text, err))
	}
	if strings.HasSuffix(h.Kind, "List") {
		if err != nil {
			return r.failed(key{}, *undecodable(h.Kind, text, h, err))
		}
		return r.list(h, text).withRepeated(h.Kind, repeated)
	}
	t, ok := traitOf(h.Kind)
	group, version := h.groupVersion()
	if !ok || group != t.group {
		return content{problems: append(h.misspelled(h.Kind), repeated...)} // not read
	}
	if !slices.Contains(t.versions, version) {
		return content{problems: []route.Problem{{
			Object: h.Kind + " " + h.Metadata.Name, Field: "apiVersion", Value: h.APIVersion,
			Reason: "this version is not read; expected " + t.apiVersion(),
		}}}
	}
	if err != nil {
		return r.failed(key{}, *undecodable(h.Kind, text, h, err))
	}
	k, problem := h.key(t)
	if problem != nil {
		return r.failed(key{}, *problem)
	}
	if err := checkSize("the object", text, r.limits.DocumentBytes); err != nil {
		return r.failed(k, route.Problem{Object: k.String(), Reason: err.Error()})
	}
	if r.tally.objects.Add(1) > int64(r.limits.Objects) {
		return content{} // the whole file is refused
	}
	value, problems, problem := r.value(k, text)
	if problem != nil {
		return r.failed(k, *problem)
	}
	problems = summary(k.String(), problems, len(problems))
	return content{objects: []*object{{key: k, value: value, problems: problems}}}.withRepeated(k.String(), repeated)
}

// header reads the fields that all objects share. If one is repeated it also returns
// the text with the last one alone, because the decoder would merge them.
func (r reader) header(text []byte, from header) (header, []byte, []route.Problem, error) {
	h := header{APIVersion: from.APIVersion, Kind: from.Kind, depth: from.depth}
	into := struct {
		*header
		Items skipped `json:"items"`
	}{header: &h}
	found, err := json.UnmarshalStrict(text, &into, json.DisallowDuplicateFields)
	if err != nil || len(found) == 0 {
		return h, text, nil, err
	}
	var repeated []route.Problem
	for _, e := range found {
		repeated = append(repeated, fieldProblem(e))
	}
	unique, err := withoutRepeated(text, r.limits.DocumentBytes)
	if err != nil {
		return h, text, nil, fmt.Errorf("%s is repeated, which is not resolved because %w", repeated[0].Field, err)
	}
	h = header{APIVersion: from.APIVersion, Kind: from.Kind, depth: from.depth}
	return h, unique, repeated, json.UnmarshalCaseSensitivePreserveInts(unique, &h)
}

// skipped is a value that is not decoded.
type skipped struct{}

// UnmarshalJSON does nothing.
func (skipped) UnmarshalJSON([]byte) error { return nil }

// withoutRepeated returns a JSON text with only the last of each repeated key.
func withoutRepeated(text []byte, limit int64) ([]byte, error) {
	if err := checkSize("the document", text, limit); err != nil {
		return nil, err
	}
	var value any
	dec := stdjson.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	if err := dec.Decode(&value); err != nil {
		return nil, fmt.Errorf("read JSON: %w", err)
	}
	return stdjson.Marshal(value)
}

// notAnObject is the problem of a document without apiVersion or kind.
func notAnObject(h header, text []byte, err error) route.Problem {
	if err != nil {
		return *undecodable("", text, h, err)
	}
	p := route.Problem{Field: "kind", Value: h.Kind, Reason: "not a Kubernetes object: it needs an apiVersion and a kind"}
	if h.Kind != "" {
		p.Field, p.Value = "apiVersion", h.APIVersion
	}
	return p
}

// items are the text of the items of a list, or of null.
type items []byte

// UnmarshalJSON keeps the text.
func (l *items) UnmarshalJSON(text []byte) error {
	if len(text) == 0 || text[0] != '[' && string(text) != "null" {
		return errors.New("not a list")
	}
	*l = append((*l)[:0], text...)
	return nil
}

// list reads the items of a list, of any kinds or of one, one by one.
func (r reader) list(h header, text []byte) content {
	from, misspelled, ok := h.itemHeader()
	if !ok {
		return content{problems: misspelled}
	}
	if from.depth > maxListDepth {
		return r.failed(key{}, route.Problem{Object: h.Kind, Reason: fmt.Sprintf("lists are nested more than %d levels deep, which is the limit", maxListDepth)})
	}
	var l struct {
		Items items `json:"items"`
	}
	if err := json.UnmarshalCaseSensitivePreserveInts(text, &l); err != nil {
		return r.failed(key{}, *undecodable(h.Kind, text, struct {
			Items []stdjson.RawMessage `json:"items"`
		}{}, err))
	}
	var parts []content
	dec := stdjson.NewDecoder(bytes.NewReader(l.Items))
	if _, err := dec.Token(); err != nil {
		return content{} // there are none
	}
	for dec.More() && !r.isStopped() {
		var item stdjson.RawMessage
		if err := dec.Decode(&item); err != nil {
			return r.failed(key{}, route.Problem{Object: h.Kind, Field: "items", Reason: err.Error()})
		}
		if len(parts) == r.limits.Documents {
			return unread(route.Problem{Object: h.Kind, Field: "items", Reason: fmt.Sprintf("there are more than %d items, which is the limit", r.limits.Documents)})
		}
		parts = append(parts, r.object(item, from))
	}
	return joinItems(parts)
}

// service is a converted Service with its selector.
type service struct {
	*cluster.Service
	selection *convert.Selection // nil: no selector
}

// value converts an object. It returns nil for one without meaning to a proxy, the
// problems of the object, and an error if the object cannot be decoded.
func (r reader) value(k key, text []byte) (any, []route.Problem, *route.Problem) {
	switch k.kind {
	case kindService:
		return decode(r, k, text, r.service)
	case kindEndpointSlice:
		return decode(r, k, text, r.slice)
	case kindEndpoints:
		return decode(r, k, text, r.convert.Endpoints)
	case kindPod:
		return decode(r, k, text, r.convert.Pod)
	case kindServiceCIDR:
		return decode(r, k, text, r.convert.ServiceCIDR)
	case kindNode:
		if k.name.Name == r.nodeName {
			return decode(r, k, text, r.convert.Node)
		}
	}
	return nil, nil, nil
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

// decode decodes an object and converts it; a zero value becomes nil. Fields that the
// API types do not have are a problem, not an error: a newer API may have them.
func decode[T any, O pointer[T], V any](r reader, k key, text []byte, convert func(O) (V, []route.Problem)) (any, []route.Problem, *route.Problem) {
	o := O(new(T))
	found, err := json.UnmarshalStrict(text, o)
	if slices.ContainsFunc(found, isRepeated) {
		o = new(T) // the decoder merges repeated keys
		if text, err = withoutRepeated(text, r.limits.DocumentBytes); err == nil {
			err = json.UnmarshalCaseSensitivePreserveInts(text, o)
		}
	}
	if err != nil {
		return nil, nil, undecodable(k.String(), text, o, err)
	}
	o.SetNamespace(k.name.Namespace)
	value, problems := convert(o)
	for _, e := range found {
		p := fieldProblem(e)
		p.Object = k.String()
		problems = append(problems, p)
	}
	if reflect.ValueOf(&value).Elem().IsZero() {
		return nil, problems, nil
	}
	return value, problems, nil
}

// isRepeated reports whether an error of the strict decoder is about a repeated key.
func isRepeated(err error) bool { return strings.HasPrefix(err.Error(), "duplicate field") }

// fieldProblem is the problem of an unknown field or a repeated key.
func fieldProblem(err error) route.Problem {
	p := route.Problem{Reason: err.Error()}
	if field, ok := errors.AsType[json.FieldError](err); ok {
		p.Field, p.Reason = field.FieldPath(), "unknown field, ignored"
	}
	if isRepeated(err) {
		p.Reason = "repeated; the last value is used"
	}
	return p
}
