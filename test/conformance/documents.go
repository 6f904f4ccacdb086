//go:build linux

package conformance

import (
	"fmt"
	"strings"
)

// base returns the objects of every scenario; a document of the same kind and name replaces them.
func base() []string {
	return []string{
		`{kind: ServiceCIDR, metadata: {name: kubernetes}, spec: {cidrs: [172.30.0.0/16, "fd00:172:30::/48"]}}`,
		nodeA("zone-a"),
	}
}

// nodeA is the Node of the proxy, in a zone ("": none).
func nodeA(zone string) string {
	return `{kind: Node, metadata: {name: node-a, labels: {topology.kubernetes.io/zone: "` + zone + `"}},
  spec: {podCIDRs: [10.180.0.0/24, "fd00:10:180::/64"]},
  status: {addresses: [{type: InternalIP, address: 192.168.0.2}, {type: InternalIP, address: "2001:db8::1"}]}}`
}

// service is the YAML of a Service with the fields of its spec, as in
//
//	service("web", `clusterIP: 172.30.0.41, ports: [{port: 80}]`)
func service(name, spec string) string {
	return fmt.Sprintf("{kind: Service, metadata: {name: %s}, spec: {%s}}", name, spec)
}

// loadBalancer is the YAML of a Service of type LoadBalancer that has these addresses in its status.
func loadBalancer(name, spec string, vips ...string) string {
	var ingress []string
	for _, vip := range vips {
		ingress = append(ingress, fmt.Sprintf("{ip: %q, ipMode: VIP}", vip))
	}
	return fmt.Sprintf("{kind: Service, metadata: {name: %s}, spec: {type: LoadBalancer, %s}, status: {loadBalancer: "+
		"{ingress: [%s]}}}",
		name, spec, strings.Join(ingress, ", "))
}

// slice is the YAML of an EndpointSlice. The name is the name of the Service, or "service/suffix" for further slices
// of it. Ports are "80", "http:8080", "dns:53/udp", several with spaces between. Endpoints are
//
//	"10.180.0.1 A"                     on node A (B, C), ready
//	"10.180.0.1"                       on no known node
//	"10.180.0.1 B 011"                 not ready, serving, terminating
//	"10.180.0.1 B zones=a,b nodes=B"   with topology hints
func slice(name, ports string, endpoints ...string) string {
	owner, _, _ := strings.Cut(name, "/")
	family := "IPv4"
	if len(endpoints) > 0 && strings.Contains(strings.Fields(endpoints[0])[0], ":") {
		family = "IPv6"
	}
	var eps, ps []string
	for p := range strings.FieldsSeq(ports) {
		ps = append(ps, slicePort(p))
	}
	for _, e := range endpoints {
		eps = append(eps, endpoint(e))
	}
	return fmt.Sprintf(`{kind: EndpointSlice, metadata: {name: %s, labels: {kubernetes.io/service-name: %s}},
  addressType: %s, ports: [%s], endpoints: [%s]}`,
		strings.ReplaceAll(name, "/", "-"), owner, family, strings.Join(ps, ", "), strings.Join(eps, ", "))
}

func slicePort(text string) string {
	name, number, named := strings.Cut(text, ":")
	if !named {
		name, number = "", text
	}
	number, protocol, _ := strings.Cut(number, "/")
	if protocol == "" {
		protocol = "tcp"
	}
	return fmt.Sprintf("{name: %q, port: %s, protocol: %s}", name, number, strings.ToUpper(protocol))
}

func endpoint(text string) string {
	words := strings.Fields(text)
	fields := []string{fmt.Sprintf("addresses: [%q]", words[0])}
	for _, w := range words[1:] {
		switch {
		case strings.Contains(w, "="): // hints, below
		case len(w) == 3:
			fields = append(fields, fmt.Sprintf("conditions: {ready: %t, serving: %t, terminating: %t}",
				w[0] == '1', w[1] == '1', w[2] == '1'))
		default:
			fields = append(fields, "nodeName: "+nodeName(w))
		}
	}
	if h := hints(words[1:]); h != "" {
		fields = append(fields, "hints: {"+h+"}")
	}
	return "{" + strings.Join(fields, ", ") + "}"
}

func nodeName(letter string) string { return "node-" + strings.ToLower(letter) }

func hints(words []string) string {
	var out []string
	for _, w := range words {
		key, list, _ := strings.Cut(w, "=")
		var names []string
		for n := range strings.SplitSeq(list, ",") {
			switch key {
			case "zones":
				n = "zone-" + n
			case "nodes":
				n = nodeName(n)
			}
			names = append(names, "{name: "+n+"}")
		}
		switch key {
		case "zones":
			out = append(out, "forZones: ["+strings.Join(names, ", ")+"]")
		case "nodes":
			out = append(out, "forNodes: ["+strings.Join(names, ", ")+"]")
		}
	}
	return strings.Join(out, ", ")
}
