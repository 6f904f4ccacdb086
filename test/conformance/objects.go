//go:build linux

package conformance

import (
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/source/convert"
)

// objects are the content of an API server, and the store that receives every change.
type objects struct {
	convert convert.Converter
	docs    map[string]document // by kind/name
	store   *cluster.Store      // nil: the proxy is not running
}

// document is one object, converted.
type document struct {
	key    string // kind/name
	text   string
	put    func(*cluster.Store)
	remove func(*cluster.Store)
	cidrs  []netip.Prefix // of a ServiceCIDR
	slice  *discoveryv1.EndpointSlice
}

func newObjects(s settings) *objects {
	return &objects{
		convert: convert.Converter{AllowExternalIPs: !s.noExternalIPs, Ejects: true},
		docs:    map[string]document{},
	}
}

// ejecting reports whether a Service has the annotation of ejection: looks at conntrack are only for those.
func (o *objects) ejecting() bool {
	for _, d := range o.docs {
		if strings.Contains(d.text, convert.AnnotationEjection) {
			return true
		}
	}
	return false
}

// set adds or replaces an object.
func (o *objects) set(text string) error {
	d, err := o.parse(text)
	if err != nil {
		return fmt.Errorf("%w in:\n%s", err, text)
	}
	o.docs[d.key] = d
	if o.store != nil {
		d.put(o.store)
	}
	o.setCIDRs()
	return nil
}

// remove deletes an object by its kind and name.
func (o *objects) remove(key string) error {
	d, ok := o.docs[key]
	if !ok {
		return fmt.Errorf("there is no %s to remove", key)
	}
	delete(o.docs, key)
	if o.store != nil {
		d.remove(o.store)
	}
	o.setCIDRs()
	return nil
}

// fill puts all objects into a new store.
func (o *objects) fill(store *cluster.Store) {
	o.store = store
	for _, d := range o.docs {
		d.put(store)
	}
	o.setCIDRs()
}

func (o *objects) setCIDRs() {
	if o.store == nil {
		return
	}
	var all []netip.Prefix
	for _, d := range o.docs {
		all = append(all, d.cidrs...)
	}
	o.store.SetServiceCIDRs(all)
}

func (o *objects) parse(text string) (document, error) {
	var meta struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
	}
	if err := yaml.Unmarshal([]byte(text), &meta); err != nil {
		return document{}, fmt.Errorf("read object: %w", err)
	}
	parse, ok := map[string]func(string, *document) error{
		"Service": o.service, "EndpointSlice": o.slice, "Node": o.node, "ServiceCIDR": o.serviceCIDR,
	}[meta.Kind]
	if !ok {
		return document{}, fmt.Errorf("unknown kind %q", meta.Kind)
	}
	d := document{
		key: meta.Kind + "/" + meta.Name, text: text, put: func(*cluster.Store) {}, remove: func(*cluster.Store) {},
	}
	return d, parse(text, &d)
}

func (o *objects) service(text string, d *document) error {
	var svc corev1.Service
	if err := yaml.UnmarshalStrict([]byte(text), &svc); err != nil {
		return fmt.Errorf("read Service: %w", err)
	}
	svc.Namespace = "default"
	value, _ := o.convert.Service(&svc) // problems show in the connections of clients
	d.put = func(s *cluster.Store) { s.SetService(value) }
	d.remove = func(s *cluster.Store) { s.DeleteService(value.Name) }
	return nil
}

func (o *objects) slice(text string, d *document) error {
	var es discoveryv1.EndpointSlice
	if err := yaml.UnmarshalStrict([]byte(text), &es); err != nil {
		return fmt.Errorf("read EndpointSlice: %w", err)
	}
	es.Namespace = "default"
	value, _ := o.convert.Slice(&es)
	name := cluster.Name{Namespace: es.Namespace, Name: es.Name}
	d.slice = &es
	d.remove = func(s *cluster.Store) { s.DeleteSlice(name) }
	d.put = d.remove
	if value != nil {
		d.put = func(s *cluster.Store) { s.SetSlice(value) }
	}
	return nil
}

func (o *objects) node(text string, d *document) error {
	var node corev1.Node
	if err := yaml.UnmarshalStrict([]byte(text), &node); err != nil {
		return fmt.Errorf("read Node: %w", err)
	}
	value, _ := o.convert.Node(&node)
	d.put = func(s *cluster.Store) { s.SetNode(value) }
	d.remove = func(s *cluster.Store) { s.SetNode(nil) }
	return nil
}

func (o *objects) serviceCIDR(text string, d *document) error {
	var sc networkingv1.ServiceCIDR
	if err := yaml.UnmarshalStrict([]byte(text), &sc); err != nil {
		return fmt.Errorf("read ServiceCIDR: %w", err)
	}
	d.cidrs, _ = o.convert.ServiceCIDR(&sc)
	return nil
}
