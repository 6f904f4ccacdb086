package convert

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
)

const (
	defaultAffinity = 10800 * time.Second // the default of the API
	maxAffinity     = 86400 * time.Second
)

// Service converts a Service. For one that is not programmed it sets only name, labels and Ignored, the reason.
func (c Converter) Service(svc *corev1.Service) (*cluster.Service, []route.Problem) {
	out := &cluster.Service{
		Name:    cluster.Name{Namespace: c.Strings.Of(svc.Namespace), Name: svc.Name},
		Created: svc.CreationTimestamp.Time,
		Ignored: ignored(svc),
		Labels:  labelText(svc.Labels),
	}
	n := &notes{object: Object("Service", out.Name)}
	if out.Ignored != "" {
		return out, nil
	}
	out.ClusterIPs = clusterIPs(svc, n)
	if c.AssignClusterIPs && svc.Spec.ClusterIP == "" && len(svc.Spec.ClusterIPs) == 0 {
		out.ClusterIPs = assignedIPs(out.Name, svc.Spec.IPFamilies)
	}
	if len(out.ClusterIPs) == 0 {
		out.Ignored = "no clusterIP"
		n.add("spec.clusterIP", "", "the Service has no usable clusterIP and is not programmed")
		return out, n.list()
	}
	out.Type = serviceType(svc, n)
	if c.AllowExternalIPs {
		list := texts{field: "spec.externalIPs", values: svc.Spec.ExternalIPs}
		out.ExternalIPs = n.addresses(list, ofFamilies(out.ClusterIPs, within(c.ExternalIPs, remoteFault)))
	}
	out.LoadBalancerIPs = n.addresses(loadBalancerIPs(svc),
		ofFamilies(out.ClusterIPs, within(c.LoadBalancerIPs, virtualFault)))
	out.Ports = c.servicePorts(svc, n)
	ranges := svc.Spec.LoadBalancerSourceRanges
	out.SourceRanges = n.prefixes(texts{field: "spec.loadBalancerSourceRanges", values: ranges})
	out.Restricted = slices.ContainsFunc(ranges, func(text string) bool { return strings.TrimSpace(text) != "" })
	out.Affinity = affinity(svc, n)
	out.Scheduler = c.Strings.Of(c.scheduler(svc, n))
	out.SlowStart = slowStart(svc, n)
	out.ProxyHeader = proxyHeader(svc, n)
	out.Ejection = c.ejection(svc, n)
	out.PreserveDestination = svc.Annotations[AnnotationPreserve] == "true"
	out.Direct = c.direct(svc, n)
	out.Weights = c.weights(svc, n)
	policies(svc, out, n)
	return out, n.list()
}

// scheduler returns the name of an algorithm, which a data plane may not have; empty: the Service names none that this
// mode may know.
func (c Converter) scheduler(svc *corev1.Service, n *notes) string {
	const longest = 15 // of a name in the kernel
	name := svc.Annotations[AnnotationScheduler]
	unusual := func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') }
	method, known := route.MethodOf(name)
	used, reason := name, ""
	switch {
	case len(name) > longest || strings.ContainsFunc(name, unusual):
		used, reason = "", "ignored: expected at most 15 letters and digits, such as rr or wlc"
	case !known && c.AnyScheduler:
		reason = "unknown scheduler, ignored unless the kernel has it: expected " + text.Alternatives(route.Schedulers())
	case !known:
		used, reason = "", "unknown scheduler, ignored: expected "+text.Alternatives(route.Schedulers())
	case slices.Contains(c.Lacking, method):
		reason = "mode " + c.Mode + " does not have this scheduler and chooses endpoints at random"
	}
	n.annotation(AnnotationScheduler, name, reason)
	return used
}

// slowStart returns how long the share of a new endpoint grows.
func slowStart(svc *corev1.Service, n *notes) time.Duration {
	const longest = time.Hour
	text := svc.Annotations[AnnotationSlowStart]
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > longest {
		n.annotation(AnnotationSlowStart, text, "ignored: expected a duration up to 1h, such as 30s")
		return 0
	}
	return d
}

// ejection returns which failures eject endpoints.
func (c Converter) ejection(svc *corev1.Service, n *notes) cluster.Ejection {
	e := c.Ejection
	if text, has := svc.Annotations[AnnotationEjection]; has {
		own, err := route.ParseEjection(text)
		switch {
		case err != nil:
			n.annotation(AnnotationEjection, text, "ignored: "+err.Error())
		case own.On() && !c.Ejects:
			n.annotation(AnnotationEjection, text,
				"mode "+c.Mode+" does not eject endpoints: they keep their share when connections to them fail")
		default:
			e = own
		}
	}
	if !c.Ejects {
		return cluster.Ejection{}
	}
	return e
}

// direct reports whether nodes pass connections of clients outside on to each other.
func (c Converter) direct(svc *corev1.Service, n *notes) bool {
	text, has := svc.Annotations[AnnotationExternal]
	if !has {
		return c.AllDirect && c.Direct
	}
	direct, err := route.ParseExternal(text)
	switch {
	case err != nil:
		n.annotation(AnnotationExternal, text, "ignored: "+err.Error())
		return c.AllDirect && c.Direct
	case direct:
		n.annotation(AnnotationExternal, text, c.notDirect(svc))
	}
	return direct
}

// notDirect returns why external: direct has no effect; empty: it has.
func (c Converter) notDirect(svc *corev1.Service) string {
	switch spec := &svc.Spec; {
	case !c.Direct:
		return "mode " + c.Mode + " cannot do this and serves external addresses as without the annotation"
	case spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal:
		return "no effect with externalTrafficPolicy Local"
	case spec.Type != corev1.ServiceTypeLoadBalancer && len(spec.ExternalIPs) == 0:
		return "no effect without a load balancer or externalIP: a NodePort has the address of one node, and is lost with it"
	}
	return ""
}

// proxyHeader reports whether endpoints learn the addresses of clients.
func proxyHeader(svc *corev1.Service, n *notes) bool {
	text := svc.Annotations[AnnotationClients]
	if text != "" && text != "proxy-protocol" {
		n.annotation(AnnotationClients, text, "ignored: expected proxy-protocol")
	}
	return text == "proxy-protocol"
}

// ignored returns the reason why a Service is not for this proxy; empty if it is.
func ignored(svc *corev1.Service) string {
	if v, ok := svc.Labels[LabelProxyName]; ok {
		return "label " + LabelProxyName + "=" + v
	}
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		return "ExternalName"
	}
	if svc.Spec.ClusterIP == corev1.ClusterIPNone ||
		len(svc.Spec.ClusterIPs) > 0 && svc.Spec.ClusterIPs[0] == corev1.ClusterIPNone {
		return "headless"
	}
	return ""
}

// clusterIPs returns the ClusterIPs that match ipFamilies, at most one of each family. An object that the API server
// has not completed may have them only in clusterIP or only in clusterIPs.
func clusterIPs(svc *corev1.Service, n *notes) []netip.Addr {
	texts := svc.Spec.ClusterIPs
	if len(texts) == 0 {
		texts = []string{svc.Spec.ClusterIP}
	}
	var out []netip.Addr
	for i, text := range texts {
		if text == "" {
			continue
		}
		a, reason := readAddr(text, func(a netip.Addr) string {
			reason := clusterIPFault(a, i, svc.Spec.IPFamilies)
			if reason == "" && route.FamilyOf(a).In(out) {
				reason = "the Service already has a clusterIP of this family"
			}
			return reason
		})
		if reason != "" {
			n.add(at("spec.clusterIPs", i), text, reason)
			continue
		}
		out = append(out, a)
	}
	return out
}

// clusterIPFault returns the reason why the ClusterIP at position i is not usable; empty if it is.
func clusterIPFault(a netip.Addr, i int, families []corev1.IPFamily) string {
	if len(families) == 0 {
		return virtualFault(a)
	}
	if i >= len(families) {
		return "spec.ipFamilies has no entry for it"
	}
	if string(families[i]) != route.FamilyOf(a).String() {
		return "expected " + string(families[i]) + ", as " + at("spec.ipFamilies", i) + " says"
	}
	return virtualFault(a)
}

func serviceType(svc *corev1.Service, n *notes) cluster.Type {
	switch svc.Spec.Type {
	case "", corev1.ServiceTypeClusterIP:
		return cluster.ClusterIP
	case corev1.ServiceTypeNodePort:
		return cluster.NodePort
	case corev1.ServiceTypeLoadBalancer:
		return cluster.LoadBalancer
	default:
		n.add("spec.type", string(svc.Spec.Type),
			"unknown type, treated as ClusterIP: expected ClusterIP, NodePort, LoadBalancer or ExternalName")
		return cluster.ClusterIP
	}
}

// ofFamilies returns fault, extended by addresses of a family without a ClusterIP.
func ofFamilies(clusterIPs []netip.Addr, fault func(netip.Addr) string) func(netip.Addr) string {
	return func(a netip.Addr) string {
		if reason := fault(a); reason != "" {
			return reason
		}
		if !route.FamilyOf(a).In(clusterIPs) {
			return "the Service has no clusterIP of this family"
		}
		return ""
	}
}

// loadBalancerIPs returns the addresses in the status that this node intercepts: all except ones with ipMode Proxy.
func loadBalancerIPs(svc *corev1.Service) texts {
	list := texts{field: "status.loadBalancer.ingress", suffix: ".ip"}
	for _, in := range svc.Status.LoadBalancer.Ingress {
		if in.IPMode != nil && *in.IPMode != corev1.LoadBalancerIPModeVIP {
			in.IP = ""
		}
		list.values = append(list.values, in.IP)
	}
	return list
}

// within adds to a check that an address is in one of the ranges, if there are any.
func within(ranges []netip.Prefix, fault func(netip.Addr) string) func(netip.Addr) string {
	if len(ranges) == 0 {
		return fault
	}
	return func(a netip.Addr) string {
		if slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) }) {
			return fault(a)
		}
		return "left out, as the configuration of the proxy allows only addresses in " + text.Join(ranges, ", ")
	}
}

func (c Converter) servicePorts(svc *corev1.Service, n *notes) []cluster.ServicePort {
	out := make([]cluster.ServicePort, 0, len(svc.Spec.Ports))
	taken := portsTaken{}
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		port, ok := c.servicePort(p, at("spec.ports", i), n)
		if !ok {
			continue
		}
		if reason := taken.take(port); reason != "" {
			n.add(at("spec.ports", i), p.Name, reason)
			continue
		}
		out = append(out, port)
	}
	return out
}

func (c Converter) servicePort(p *corev1.ServicePort, field string, n *notes) (cluster.ServicePort, bool) {
	proto, protoOK := protocol(p.Protocol)
	if !protoOK {
		n.add(field+".protocol", string(p.Protocol), wantProtocol)
	}
	port, portOK := portNumber(p.Port)
	if !portOK {
		n.add(field+".port", number(p.Port), wantPort)
	}
	nameOK := p.Name == "" || len(validation.IsDNS1123Label(p.Name)) == 0
	if !nameOK {
		n.add(field+".name", p.Name, "not a port name: expected at most 63 of a-z, 0-9 and -")
	}
	nodePort, ok := portNumber(p.NodePort)
	if !ok && p.NodePort != 0 {
		n.add(field+".nodePort", number(p.NodePort), wantPort)
	}
	if !ok {
		nodePort = 0
	}
	return cluster.ServicePort{Name: c.Strings.Of(p.Name), Protocol: proto, Port: port, NodePort: nodePort},
		protoOK && portOK && nameOK
}

// portsTaken has the names and the numbers of earlier ports of a Service, each with the protocol.
type portsTaken map[cluster.ServicePort]bool

// take adds a port. If an earlier port excludes it, take returns the reason.
func (t portsTaken) take(p cluster.ServicePort) (reason string) {
	name := cluster.ServicePort{Protocol: p.Protocol, Name: p.Name}
	number := cluster.ServicePort{Protocol: p.Protocol, Port: p.Port}
	switch {
	case t[name]:
		return "another port of the Service has the same name and protocol"
	case t[number]:
		return "another port of the Service has the same number and protocol"
	}
	t[name], t[number] = true, true
	return ""
}

func affinity(svc *corev1.Service, n *notes) time.Duration {
	switch svc.Spec.SessionAffinity {
	case "", corev1.ServiceAffinityNone:
		return 0
	case corev1.ServiceAffinityClientIP:
	default:
		n.add("spec.sessionAffinity", string(svc.Spec.SessionAffinity), "unknown, treated as None: expected None or ClientIP")
		return 0
	}
	config := svc.Spec.SessionAffinityConfig
	if config == nil || config.ClientIP == nil || config.ClientIP.TimeoutSeconds == nil {
		return defaultAffinity
	}
	seconds := *config.ClientIP.TimeoutSeconds
	d := time.Duration(seconds) * time.Second
	if d <= 0 || d > maxAffinity {
		n.add("spec.sessionAffinityConfig.clientIP.timeoutSeconds", number(seconds), "treated as 10800: expected 1 to 86400")
		return defaultAffinity
	}
	return d
}

// policies sets the traffic policies and the fields that depend on them.
func policies(svc *corev1.Service, out *cluster.Service, n *notes) {
	isLocal := func(policy, field string) bool {
		if policy != "" && policy != "Cluster" && policy != "Local" {
			n.add(field, policy, "unknown policy, treated as Cluster: expected Cluster or Local")
		}
		return policy == "Local"
	}
	out.InternalLocal = isLocal(string(ptr.Deref(svc.Spec.InternalTrafficPolicy, "")), "spec.internalTrafficPolicy")
	out.ExternalLocal = isLocal(string(svc.Spec.ExternalTrafficPolicy), "spec.externalTrafficPolicy")
	if out.Type != cluster.LoadBalancer || !out.ExternalLocal || svc.Spec.HealthCheckNodePort == 0 {
		return
	}
	port, ok := portNumber(svc.Spec.HealthCheckNodePort)
	if !ok {
		n.add("spec.healthCheckNodePort", number(svc.Spec.HealthCheckNodePort), wantPort)
		return
	}
	out.HealthCheckNodePort = port
}
