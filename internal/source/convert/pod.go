package convert

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Pod has the properties of a Pod from which endpoints are derived.
type Pod struct {
	Name   cluster.Name
	Labels map[string]string

	node        string
	addrs       []netip.Addr
	ready       bool
	terminating bool
	ports       []cluster.SlicePort
}

// Pod converts a Pod. It returns nil if the Pod has ended, or has no address yet.
func (c Converter) Pod(pod *corev1.Pod) (*Pod, []route.Problem) {
	name := cluster.Name{Namespace: c.Strings.Of(pod.Namespace), Name: pod.Name}
	n := &notes{object: Object("Pod", name)}
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil, nil
	}
	out := &Pod{
		Name:        name,
		Labels:      maps.Clone(pod.Labels),
		node:        c.Strings.Of(pod.Spec.NodeName),
		addrs:       c.podAddrs(pod, n),
		ready:       podReady(pod),
		terminating: pod.DeletionTimestamp != nil,
	}
	if len(out.addrs) == 0 {
		return nil, n.list()
	}
	for i := range pod.Spec.InitContainers {
		out.ports = c.addPodPorts(out.ports, &pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		out.ports = c.addPodPorts(out.ports, &pod.Spec.Containers[i])
	}
	return out, n.list()
}

func (c Converter) podAddrs(pod *corev1.Pod, n *notes) []netip.Addr {
	list := texts{field: "status.podIPs"}
	for _, ip := range pod.Status.PodIPs {
		list.values = append(list.values, ip.IP)
	}
	if len(list.values) == 0 {
		list.values = []string{pod.Status.PodIP}
	}
	return n.addresses(list, c.endpointFault)
}

func podReady(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning &&
		slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
}

func (c Converter) addPodPorts(list []cluster.SlicePort, from *corev1.Container) []cluster.SlicePort {
	for _, p := range from.Ports {
		proto, ok := protocol(p.Protocol)
		port, valid := portNumber(p.ContainerPort)
		if ok && valid && p.Name != "" {
			list = append(list, cluster.SlicePort{Name: c.Strings.Of(p.Name), Protocol: proto, Port: port})
		}
	}
	return list
}

// Selection describes the Pods that a Service selects, and their ports.
type Selection struct {
	Service cluster.Name
	Labels  map[string]string // never empty

	ports           []target
	families        []netip.Addr // one address of each family
	publishNotReady bool
}

type target struct {
	cluster.SlicePort // Port 0: that of the container port named

	named string
}

// Selection returns the Pods that a Service selects; nil without a selector, or if it is not programmed.
func (c Converter) Selection(svc *corev1.Service, out *cluster.Service) *Selection {
	if len(svc.Spec.Selector) == 0 || out.Ignored != "" {
		return nil
	}
	sel := &Selection{
		Service:         out.Name,
		Labels:          maps.Clone(svc.Spec.Selector),
		families:        out.ClusterIPs,
		publishNotReady: svc.Spec.PublishNotReadyAddresses,
	}
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		proto, ok := protocol(p.Protocol)
		if !ok {
			continue
		}
		t := target{SlicePort: cluster.SlicePort{Name: c.Strings.Of(p.Name), Protocol: proto}}
		if p.TargetPort.Type == intstr.String {
			t.named = p.TargetPort.StrVal
		} else {
			t.Port, _ = portNumber(cmp.Or(p.TargetPort.IntVal, p.Port))
		}
		sel.ports = append(sel.ports, t)
	}
	return sel
}

// Slices returns a slice for each Pod that the Service selects.
func (s *Selection) Slices(pods []*Pod) []*cluster.Slice {
	selector := labels.SelectorFromSet(s.Labels)
	var out []*cluster.Slice
	for _, pod := range pods {
		if pod.Name.Namespace != s.Service.Namespace || !selector.Matches(labels.Set(pod.Labels)) {
			continue
		}
		sl := &cluster.Slice{
			Name:      derivedName(s.Service, "pods", pod.Name.Name),
			Service:   s.Service,
			Ports:     s.resolve(pod),
			Endpoints: s.endpoints(pod),
		}
		for _, e := range sl.Endpoints {
			sl.Pods = append(sl.Pods, cluster.Pod{Name: pod.Name.Name, Addr: e.Addr})
		}
		out = append(out, sl)
	}
	return out
}

// resolve returns the ports with the numbers of one Pod, without named target ports that the Pod does not have.
func (s *Selection) resolve(pod *Pod) []cluster.SlicePort {
	named := map[cluster.SlicePort]uint16{}        // by name and protocol
	for _, p := range slices.Backward(pod.ports) { // of ports with the same name the first is used
		named[cluster.SlicePort{Name: p.Name, Protocol: p.Protocol}] = p.Port
	}
	out := make([]cluster.SlicePort, 0, len(s.ports))
	for _, t := range s.ports {
		port := t.SlicePort
		if port.Port == 0 {
			port.Port = named[cluster.SlicePort{Name: t.named, Protocol: t.Protocol}]
		}
		if port.Port != 0 {
			out = append(out, port)
		}
	}
	return out
}

func (s *Selection) endpoints(pod *Pod) []cluster.Endpoint {
	var list []cluster.Endpoint
	for _, a := range pod.addrs {
		if !route.FamilyOf(a).In(s.families) {
			continue
		}
		list = append(list, cluster.Endpoint{
			Addr:        a,
			Node:        pod.node,
			Ready:       s.publishNotReady || pod.ready && !pod.terminating,
			Serving:     pod.ready,
			Terminating: pod.terminating,
		})
	}
	return list
}
