//go:build linux

package conformance

import (
	"fmt"
	"slices"
	"strings"
)

// oddObjects is section 7.M: filtered and invalid objects.
func oddObjects() []scenario {
	return slices.Concat(otherProxies(), oddSlices(), oddAddresses(), externalIPs(), nameLimits())
}

// labelled is the YAML of a Service web with a label.
func labelled(label string) string {
	return fmt.Sprintf(`{kind: Service, metadata: {name: web, labels: {%s}}, spec: `+
		`{clusterIP: 172.30.0.41, ports: [{port: 80}]}}`, label)
}

// otherProxies are Services and slices with labels that exclude them.
func otherProxies() []scenario {
	web := service("web", `clusterIP: 172.30.0.41, ports: [{port: 80}]`)
	other := labelled("service.kubernetes.io/service-proxy-name: foo")
	pods := slice("web", "8080", "10.180.0.1 A")
	headless := strings.Replace(pods, "labels: {", `labels: {service.kubernetes.io/headless: "", `, 1)
	const client, vip, pod = "10.180.0.2", "172.30.0.41:80", "10.180.0.1:8080"
	return []scenario{
		{
			covers: []int{236, 237}, summary: "a Service with a label for another proxy is ignored while it has the label",
			cluster: []string{other, pods},
			steps: []step{
				unallocated(client, vip),
				apply(web),
				reach(client, vip, original, pod),
				apply(other),
				unallocated(client, vip),
				apply(labelled("service.kubernetes.io/service-proxy-name: \"\"")),
				unallocated(client, vip),
				apply(labelled("app: web")),
				reach(client, vip, original, pod),
			},
		},
		{
			covers: []int{238}, summary: "a slice with the headless label is ignored while it has the label",
			cluster: []string{web, headless},
			steps: []step{
				refused(client, vip),
				apply(pods),
				reach(client, vip, original, pod),
				apply(headless),
				refused(client, vip),
			},
		},
		{
			covers: []int{239}, summary: "nothing is programmed for a headless Service, whose pods are reached directly",
			cluster: []string{service("web", `clusterIP: None, ports: [{port: 8080}]`), pods},
			steps: []step{
				reach(client, pod, original, pod),
				untouched("outside", "192.168.0.2:8080"),
				apply(service("web",
					`clusterIP: None, clusterIPs: [None], type: ClusterIP, externalIPs: [192.168.99.22], ports: [{port: 80}]`)),
				reach(client, pod, original, pod),
				untouched(client, "192.168.99.22:80"),
			},
		},
	}
}

// oddSlices are slices that can be used in part only.
func oddSlices() []scenario {
	web := service("web", `clusterIP: 172.30.0.41, ports: [{name: a, port: 80}, {name: b, port: 81}]`)
	raw := func(name, rest string) string {
		return fmt.Sprintf(`{kind: EndpointSlice, metadata: {name: %s, labels: {kubernetes.io/service-name: web}}, %s}`,
			name, rest)
	}
	good := slice("web/good", "a:8080", "10.180.0.1 A")
	const ports = `addressType: IPv4, ports: [{name: a, port: 8080, protocol: TCP}]`
	const client, vip, pod = "10.180.0.2", "172.30.0.41:80", "10.180.0.1:8080"
	return []scenario{
		{
			covers: []int{240}, summary: "a slice of addressType FQDN is ignored",
			cluster: []string{
				web, good,
				raw("names", `addressType: FQDN, ports: [{name: a, port: 8080}], endpoints: [{addresses: [example.com]}]`),
			},
			steps: []step{reach(client, vip, original, pod)},
		},
		{
			covers: []int{241}, summary: "a slice without a Service name is ignored",
			cluster: []string{
				web, good,
				`{kind: EndpointSlice, metadata: {name: web-lost}, ` + ports + `, endpoints: [{addresses: ["10.180.0.3"]}]}`,
				`{kind: EndpointSlice, metadata: {name: web-blank, labels: {kubernetes.io/service-name: ""}}, ` + ports +
					`, endpoints: [{addresses: ["10.180.0.4"]}]}`,
			},
			steps: []step{reach(client, vip, original, pod)},
		},
		{
			covers: []int{242}, summary: "ports without a number are ignored, and other ports of the slice work",
			cluster: []string{web, raw("web", `addressType: IPv4,
  ports: [{name: a, port: 0}, {name: a}, {name: b, port: 8080}], endpoints: [{addresses: ["10.180.0.1"]}]`)},
			steps: []step{refused(client, vip), reach(client, "172.30.0.41:81", original, pod)},
		},
		{
			covers: []int{242}, summary: "a slice port whose name is null, not empty, is ignored",
			cluster: []string{
				service("web", `clusterIP: 172.30.0.41, ports: [{port: 80}]`),
				raw("web", `addressType: IPv4, ports: [{port: 8080}], endpoints: [{addresses: ["10.180.0.1"]}]`),
			},
			steps: []step{
				refused(client, vip),
				apply(raw("web", `addressType: IPv4, ports: [{name: "", port: 8080}], endpoints: [{addresses: ["10.180.0.1"]}]`)),
				reach(client, vip, original, pod),
			},
		},
		{
			covers: []int{243}, summary: "an endpoint without an address is ignored",
			cluster: []string{web, raw("web", ports+`, endpoints: [{addresses: []}, {addresses: ["10.180.0.1"]}]`)},
			steps:   []step{reach(client, vip, original, pod)},
		},
		{
			covers: []int{244}, summary: "only the first address of an endpoint is used",
			cluster: []string{web, raw("web", ports+`, endpoints: [{addresses: ["10.180.0.1", "10.180.0.3"]}]`)},
			pods:    []string{"10.180.0.3 A 8080/tcp"},
			steps:   []step{reach(client, vip, original, pod)},
		},
	}
}

// oddAddresses are malformed addresses and ranges.
func oddAddresses() []scenario {
	const pod = "10.180.0.1:8080"
	pods := slice("web", "8080", "10.180.0.1 A")
	return []scenario{
		{
			covers: []int{245}, summary: "addresses with leading zeros are read as decimal", families: onlyIPv4,
			cluster: []string{
				loadBalancer("web", `clusterIP: 172.30.0.041, externalIPs: [192.168.099.022],
  loadBalancerSourceRanges: [203.0.113.000/025], ports: [{port: 80}]`, "001.002.003.004"),
				slice("web", "8080", "10.180.00.001 A"),
			},
			pods: []string{"10.180.0.1 A 8080/tcp"},
			steps: []step{
				reach("10.180.0.2", "172.30.0.41:80", original, pod),
				reach("outside", "192.168.99.22:80", masqueraded, pod),
				reach("outside", "1.2.3.4:80", masqueraded, pod),
				dropped("blocked", "1.2.3.4:80"),
			},
		},
		{
			covers: []int{246}, summary: "an invalid externalIP is ignored, the others work",
			cluster: []string{
				service("web",
					`clusterIP: 172.30.0.41, externalIPs: ["", garbage, "1.2.3", 192.168.99.22, " "], ports: [{port: 80}]`), pods,
			},
			steps: []step{
				reach("outside", "192.168.99.22:80", masqueraded, pod),
				reach("10.180.0.2", "172.30.0.41:80", original, pod),
			},
		},
		{
			covers: []int{253}, summary: "source ranges that are all invalid admit no client (kube-proxy admits all)",
			cluster: []string{
				loadBalancer("web",
					`clusterIP: 172.30.0.41, loadBalancerSourceRanges: [garbage, 203.0.113.0/99], `+
						`ports: [{port: 80, nodePort: 32000}]`, "192.168.99.1"),
				pods,
			},
			steps: []step{
				dropped("outside", "192.168.99.1:80"),
				dropped("blocked", "192.168.99.1:80"),
				reach("10.180.0.2", "172.30.0.41:80", original, pod),
				apply(loadBalancer("web",
					`clusterIP: 172.30.0.41, loadBalancerSourceRanges: [garbage, 203.0.113.0/25], ports: [{port: 80}]`,
					"192.168.99.1")),
				reach("outside", "192.168.99.1:80", masqueraded, pod),
				dropped("blocked", "192.168.99.1:80"),
			},
		},
	}
}

// externalIPs are addresses in spec.externalIPs.
func externalIPs() []scenario {
	const pod, other = "10.180.0.1:8080", "10.180.0.3:8080"
	pods := slice("web", "8080", "10.180.0.1 A")
	claim := func(name, created, clusterIP string) string {
		return fmt.Sprintf(`{kind: Service, metadata: {name: %s, creationTimestamp: %q},
  spec: {clusterIP: %s, externalIPs: [192.168.99.22], ports: [{port: 80}]}}`, name, created, clusterIP)
	}
	const jan, feb = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"
	won := func(backend string) step { return reach("outside", "192.168.99.22:80", masqueraded, backend) }
	return []scenario{
		{
			covers: []int{247}, summary: "an externalIP may be an address of the node",
			cluster: []string{service("web", `clusterIP: 172.30.0.41, externalIPs: [192.168.0.2], ports: [{port: 80}]`), pods},
			steps: []step{
				reach("outside", "192.168.0.2:80", masqueraded, pod),
				untouched("outside", "192.168.0.2:81"),
			},
		},
		{
			covers: []int{248}, summary: "an externalIP may be an address of no node",
			cluster: []string{service("web", `clusterIP: 172.30.0.41, externalIPs: [192.168.99.22], ports: [{port: 80}]`), pods},
			steps: []step{
				reach("outside", "192.168.99.22:80", masqueraded, pod),
				reach("10.180.0.2", "192.168.99.22:80", masqueraded, pod),
			},
		},
		{
			covers:  []int{249},
			summary: "of two Services with the same externalIP the older gets it, in any order of events (kube-proxy: either)",
			cluster: []string{
				claim("web", feb, "172.30.0.41"), pods,
				claim("zoo", jan, "172.30.0.42"), slice("zoo", "8080", "10.180.0.3 A"),
			},
			steps: []step{
				won(other),
				reach("10.180.0.2", "172.30.0.41:80", original, pod),
				reach("10.180.0.2", "172.30.0.42:80", original, other),
				remove("Service/zoo"),
				won(pod),
				apply(claim("zoo", jan, "172.30.0.42")),
				won(other),
				stopProxy, startProxy,
				won(other),
			},
		},
		{
			covers: []int{249}, summary: "of two Services of equal age with the same externalIP the first by name gets it",
			cluster: []string{
				claim("zoo", jan, "172.30.0.42"), slice("zoo", "8080", "10.180.0.3 A"),
				claim("web", jan, "172.30.0.41"), pods,
			},
			steps: []step{won(pod), apply(slice("zoo", "8080", "10.180.0.4 A")), won(pod)},
		},
		{
			covers: []int{250}, summary: "externalIPs can be forbidden", settings: settings{noExternalIPs: true},
			cluster: []string{service("web", `clusterIP: 172.30.0.41, externalIPs: [192.168.99.22], ports: [{port: 80}]`), pods},
			steps: []step{
				untouched("10.180.0.2", "192.168.99.22:80"),
				reach("10.180.0.2", "172.30.0.41:80", original, pod),
			},
		},
	}
}

// nameLimits are values at the limits of validation.
func nameLimits() []scenario {
	long := strings.Repeat("x", 63)
	const pod = "10.180.0.1:8080"
	return []scenario{
		{
			covers: []int{251}, summary: "names may have 63 characters and begin with a digit",
			cluster: []string{
				service(long, `clusterIP: 172.30.0.41, `+clientIP+`, ports: [{name: `+long+`, port: 80}]`),
				slice(long, long+":8080", "10.180.0.1 A"),
				service("1"+long[1:],
					`clusterIP: 172.30.0.42, type: NodePort, ports: [{name: 8`+long[1:]+`, port: 80, nodePort: 32000}]`),
				slice("1"+long[1:], "8"+long[1:]+":8080", "10.180.0.1 A"),
			},
			steps: []step{
				reach("10.180.0.2", "172.30.0.41:80", original, pod),
				reach("10.180.0.2", "172.30.0.42:80", original, pod),
				reach("outside", "192.168.0.2:32000", masqueraded, pod),
				apply(slice(long, long+":8081", "10.180.0.1 A")),
				reach("10.180.0.2", "172.30.0.41:80", original, "10.180.0.1:8081"),
				remove("Service/" + long),
				unallocated("10.180.0.2", "172.30.0.41:80"),
			},
		},
		{
			covers: []int{252}, summary: "affinity without a timeout uses the default timeout",
			cluster: []string{
				service("web", `clusterIP: 172.30.0.41, sessionAffinity: ClientIP, ports: [{port: 80}]`),
				slice("web", "8080", "10.180.0.1 A", "10.180.1.1 B"),
				service("other",
					`clusterIP: 172.30.0.42, sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {}}, ports: [{port: 80}]`),
				slice("other", "8080", "10.180.0.1 A", "10.180.1.1 B"),
			},
			steps: []step{
				keepsBackend("web", "10.180.0.2", "172.30.0.41:80", pod, "10.180.1.1:8080"),
				keepsBackend("other", "10.180.0.2", "172.30.0.42:80", pod, "10.180.1.1:8080"),
			},
		},
	}
}
