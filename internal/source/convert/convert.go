// Package convert turns Kubernetes API objects into the values of package
// cluster. It is pure: it neither changes nor keeps its arguments.
//
// Every conversion also returns the problems of the object. Because of a problem only the address or port that it names
// is left out, or the object if nothing remains of it.
package convert

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Labels that a service proxy uses and for which the API types have no names.
const (
	LabelProxyName = "service.kubernetes.io/service-proxy-name"
	LabelHeadless  = corev1.IsHeadlessService
)

// AnnotationScheduler names the algorithm that chooses endpoints of a Service, in modes that have several.
// AnnotationWeights has the weights of endpoints: "NODE=3, ADDRESS=0". AnnotationSliceWeight, of Cilium since 1.20, is
// the weight of each endpoint of an EndpointSlice. AnnotationClients with the value "proxy-protocol" tells endpoints
// the addresses of clients in mode userspace. AnnotationSlowStart is how long the share of a new endpoint grows in mode
// ebpf, such as 30s. AnnotationEjection lets endpoints leave to which connections fail: "on", "off", or thresholds such
// as "clients=2,row=5". AnnotationExternal with the value "direct" makes nodes pass connections of clients outside on
// to the node of an endpoint; "cluster": not so. AnnotationPreserve is the annotation of kube-proxy for Windows: "true"
// preserves the destination.
const (
	AnnotationScheduler   = "sluice-proxy.github.io/scheduler"
	AnnotationWeights     = "sluice-proxy.github.io/weights"
	AnnotationSliceWeight = "service.cilium.io/weight"
	AnnotationClients     = "sluice-proxy.github.io/client-address"
	AnnotationSlowStart   = "sluice-proxy.github.io/slow-start"
	AnnotationEjection    = "sluice-proxy.github.io/ejection"
	AnnotationExternal    = "sluice-proxy.github.io/external"
	AnnotationPreserve    = "preserve-destination"
)

// Converter converts objects. Its zero value ignores externalIPs; it is safe for concurrent use.
type Converter struct {
	// AllowExternalIPs lets Services claim addresses by spec.externalIPs.
	AllowExternalIPs bool

	// ExternalIPs and LoadBalancerIPs are the ranges in which Services may have such addresses; empty: all.
	ExternalIPs, LoadBalancerIPs []netip.Prefix

	// LoopbackEndpoints lets endpoints have loopback addresses, for programs on the same host that
	// are reached by connections of this process. The API server accepts none.
	LoopbackEndpoints bool

	// AssignClusterIPs gives Services without a clusterIP one that follows from their names, for manifests of which no API
	// server has completed the objects. If two get the same one and a common port, the older owns it (package route).
	AssignClusterIPs bool

	// Mode names the mode in the problems of annotations that it cannot follow. It does not have the methods Lacking.
	// AnyScheduler means that a Service may name a scheduler that only the kernel may know.
	Mode         string
	Lacking      []route.Method
	AnyScheduler bool

	// Ejects means that this mode can eject endpoints. Ejection is that of Services without the annotation.
	Ejects   bool
	Ejection cluster.Ejection

	// Direct means that nodes can pass connections on to each other in this mode, and AllDirect that they do so for
	// Services without the annotation.
	Direct, AllDirect bool

	// PodsOf is the node whose pods slices name (cluster.Slice); empty: they name all pods.
	PodsOf string

	// Strings, if not nil, makes equal strings of different objects share their memory.
	Strings *Interner
}

// Object returns the name of an object in problems: "Service default/web".
func Object(kind string, name cluster.Name) string {
	if name.Namespace == "" {
		return kind + " " + name.Name
	}
	return kind + " " + name.String()
}

// notes collects the problems of one object.
type notes struct {
	object   string
	problems route.Collector
}

func (n *notes) add(field, value, reason string) {
	n.problems.Add(route.Problem{Object: n.object, Field: field, Value: value, Reason: reason})
}

// annotation adds what is wrong with an annotation; without a reason it does nothing.
func (n *notes) annotation(name, value, reason string) {
	if reason != "" {
		n.add("metadata.annotations["+name+"]", value, reason)
	}
}

// list returns the problems. Of many similar ones it returns some and the number of the rest.
func (n *notes) list() []route.Problem { return n.problems.Problems() }

// at returns the path of an element of a list.
func at(list string, i int) string {
	return list + "[" + strconv.Itoa(i) + "]"
}

// protocol returns the number of a protocol; empty means TCP, as in the API.
func protocol(p corev1.Protocol) (cluster.Protocol, bool) {
	switch p {
	case "", corev1.ProtocolTCP:
		return cluster.TCP, true
	case corev1.ProtocolUDP:
		return cluster.UDP, true
	case corev1.ProtocolSCTP:
		return cluster.SCTP, true
	}
	return 0, false
}

const (
	wantProtocol = "unknown protocol: expected TCP, UDP or SCTP"
	wantPort     = "not a port number: expected 1 to 65535"
)

// portNumber returns a port; false if it is not in the range 1 to 65535.
func portNumber(p int32) (uint16, bool) {
	return uint16(p), p >= 1 && p <= 65535
}

func number(p int32) string { return strconv.Itoa(int(p)) }

// labelText returns labels as cluster.Service.Labels. It allocates less than apimachinery's Set.String: all Services of
// a List are converted.
func labelText(set map[string]string) string {
	size := 0
	keys := make([]string, 0, len(set))
	for key, value := range set {
		keys = append(keys, key)
		size += len(key) + len(value) + len("=,")
	}
	slices.Sort(keys)
	text := make([]byte, 0, size)
	for _, key := range keys {
		text = append(append(append(append(text, key...), '='), set[key]...), ',')
	}
	return strings.TrimSuffix(string(text), ",")
}

// Selector returns a function that reports whether a label selector, as users write it, selects labels in the form of
// cluster.Service.Labels.
func Selector(text string) (func(labels string) bool, error) {
	selector, err := labels.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("label selector %q: %w", text, err)
	}
	return func(list string) bool {
		set := labels.Set{}
		for label := range strings.SplitSeq(list, ",") {
			if key, value, has := strings.Cut(label, "="); has {
				set[key] = value
			}
		}
		return selector.Matches(set)
	}, nil
}

// Interner returns a single copy of values that many objects repeat: namespaces, node names, zones, port names,
// topology hints. It is safe for concurrent use; a nil Interner shares nothing.
type Interner struct {
	mu    sync.Mutex
	seen  map[string]string
	hints map[string]*cluster.Hints
}

// maxInterned bounds the strings that an Interner keeps. It exceeds the number of nodes, zones, namespaces and port
// names of any cluster; at the limit the Interner discards all of them.
const maxInterned = 1 << 15

// NewInterner returns an empty Interner.
func NewInterner() *Interner {
	return &Interner{seen: map[string]string{}, hints: map[string]*cluster.Hints{}}
}

// Of returns the shared copy of s.
func (in *Interner) Of(s string) string {
	if in == nil || s == "" {
		return s
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if kept, ok := in.seen[s]; ok {
		return kept
	}
	if len(in.seen) >= maxInterned {
		in.seen = map[string]string{}
	}
	s = strings.Clone(s) // s may be part of a larger string
	in.seen[s] = s
	return s
}

// Hints converts topology hints; nil if all lists are empty.
func (in *Interner) Hints(h *discoveryv1.EndpointHints) *cluster.Hints {
	if h == nil || len(h.ForZones) == 0 && len(h.ForNodes) == 0 {
		return nil
	}
	if in == nil {
		return in.convert(h)
	}
	var room [128]byte
	key := appendHints(room[:0], h)
	in.mu.Lock()
	kept := in.hints[string(key)]
	in.mu.Unlock()
	if kept != nil {
		return kept
	}
	made := in.convert(h)
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.hints) >= maxInterned {
		in.hints = map[string]*cluster.Hints{}
	}
	in.hints[string(key)] = made
	return made
}

// appendHints appends an encoding of the hints that is the same only for equal hints.
func appendHints(key []byte, h *discoveryv1.EndpointHints) []byte {
	key = binary.AppendUvarint(key, uint64(len(h.ForZones)))
	for i := range h.ForZones {
		key = append(append(key, h.ForZones[i].Name...), 0) // no name has a 0
	}
	for i := range h.ForNodes {
		key = append(append(key, h.ForNodes[i].Name...), 0)
	}
	return key
}

func (in *Interner) convert(h *discoveryv1.EndpointHints) *cluster.Hints {
	out := &cluster.Hints{}
	for i := range h.ForZones {
		out.Zones = append(out.Zones, in.Of(h.ForZones[i].Name))
	}
	for i := range h.ForNodes {
		out.Nodes = append(out.Nodes, in.Of(h.ForNodes[i].Name))
	}
	return out
}
