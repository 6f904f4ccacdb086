//go:build linux

package hostile

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

// claims are Services with the same externalIP and port, ordered by name from the newest to the oldest.
func claims() []attack {
	const many = 10_000
	born := func(i int) time.Time {
		return time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC).Add(-time.Duration(i) * time.Second)
	}
	return []attack{{
		name: "10,000 Services claim one address", full: others(nftables), alone: true,
		duration: 3 * time.Second, limits: limits{cpu: 1},
		before: func(s *attackTest) {
			all := claimants(many, born)
			s.write("hostile-newest.json", all[:1])
			s.write("hostile.json", all[1:many-1])
			s.write("hostile-oldest.json", all[many-1:])
		},
		during: func(ctx context.Context, s *attackTest) error {
			oldest := filepath.Join(s.dir, "hostile-oldest.json") // its Service has the address
			text, err := os.ReadFile(oldest)
			err = errors.Join(err, os.Remove(oldest))
			s.pause(ctx, time.Second)
			err = errors.Join(err, s.put("hostile-oldest.json", text), os.Remove(filepath.Join(s.dir, "hostile-newest.json")))
			s.pause(ctx, time.Second)
			return errors.Join(err, os.Remove(filepath.Join(s.dir, "hostile.json")))
		},
	}}
}

func claimants(n int, born func(i int) time.Time) []object {
	all := make([]object, 0, n)
	for i := range n {
		o := harness.Service(fmt.Sprintf("claim-%05d", i), object{
			"clusterIP":   fmt.Sprintf("172.31.%d.%d", i/250, 1+i%250),
			"externalIPs": []string{"198.51.100.1"}, "ports": []object{{"port": 80}},
		})
		o["metadata"].(object)["creationTimestamp"] = born(i).Format(time.RFC3339)
		all = append(all, o)
	}
	return all
}

// largeServices are single large Services that are added, changed, compared and deleted while others change.
func largeServices() []attack {
	var rows []attack
	for _, large := range []struct {
		name         string
		planes, full []plane
		build        func(generation int) []object
	}{
		{"1,000 externalIPs with 100 ports", []plane{iptablesNFT}, []plane{nftables}, func(generation int) []object {
			ips := make([]string, 0, 1000)
			for i := range cap(ips) {
				ips = append(ips, fmt.Sprintf("198.51.%d.%d", 101+i/250, 1+i%250))
			}
			return withEndpoints(object{"clusterIP": "172.30.9.1", "externalIPs": ips, "ports": ports(100+generation, 1)}, 3)
		}},
		{"65,535 ports", []plane{nftables}, []plane{}, func(generation int) []object {
			return withEndpoints(object{"clusterIP": "172.30.9.1", "ports": ports(65_535-generation, 1)}, 3)
		}},
		{"56,000 NodePorts", []plane{iptablesNFT}, []plane{}, func(generation int) []object {
			all := ports(56_000-generation, 1)
			for i := range all {
				if port := 1024 + i; port != fixedNodePort && port != 10256 {
					all[i]["nodePort"] = port
				}
			}
			return withEndpoints(object{"clusterIP": "172.30.9.1", "type": "NodePort", "ports": all}, 1)
		}},
		{"10,000 endpoints", []plane{iptablesNFT}, []plane{}, func(generation int) []object {
			return withEndpoints(object{"clusterIP": "172.30.9.1", "ports": ports(1, 1)}, 10_000+generation)
		}},
		{"100,000 endpoints", []plane{nftables}, []plane{iptablesNFT}, func(generation int) []object {
			return withEndpoints(object{"clusterIP": "172.30.9.1", "ports": ports(1, 1)}, 100_000+generation)
		}},
	} {
		rows = append(rows, attack{
			name: "a Service of " + large.name, planes: large.planes, full: large.full, alone: true,
			duration: 3 * time.Second, limits: limits{cpu: 1},
			during: func(ctx context.Context, s *attackTest) error {
				err := s.put("hostile.json", harness.Manifest(large.build(0)))
				s.pause(ctx, time.Second)
				err = errors.Join(err, s.put("hostile.json", harness.Manifest(large.build(1))))
				s.pause(ctx, 500*time.Millisecond)
				_, _ = s.runSluice("diff") // the comparison must cost little; its result is not checked
				return errors.Join(err, s.put("hostile.json", harness.Manifest(service("other", "172.30.9.1", 0))))
			},
		})
	}
	return rows
}

// ports are n named ports beginning with first.
func ports(n, first int) []object {
	all := make([]object, 0, n)
	for i := range n {
		all = append(all, object{"name": fmt.Sprintf("p%d", first+i), "port": first + i})
	}
	return all
}

// withEndpoints is Service large with n endpoints for each of its ports, in slices of 1,000. No
// pod has their addresses.
func withEndpoints(spec object, n int) []object {
	own := spec["ports"].([]object)
	backends := make([]object, 0, len(own))
	for _, p := range own {
		backends = append(backends, object{"name": p["name"], "port": p["port"]})
	}
	all := []object{harness.Service("large", spec)}
	for first := 0; first < n; first += 1000 {
		var addrs []string
		for i := first; i < min(n, first+1000); i++ {
			addrs = append(addrs, netip.AddrFrom4([4]byte{10, byte(182 + i>>16), byte(i >> 8), byte(i)}).String())
		}
		for first := 0; first < len(backends); first += 1000 {
			o := harness.EndpointSlice("large", "IPv4", backends[first:min(len(backends), first+1000)], addrs...)
			o["metadata"].(object)["name"] = fmt.Sprintf("large-%d", len(all))
			all = append(all, o)
		}
	}
	return all
}

// oddObjects are objects with unusual values.
func oddObjects() []attack {
	return []attack{
		{
			name: "Services at addresses of the node", full: others(nftables),
			before: serveOnNode,
			during: func(ctx context.Context, s *attackTest) error {
				s.pause(ctx, 300*time.Millisecond)
				return s.put("hostile.json", harness.Manifest(nodeClaims()))
			},
		},
		{
			// Mode iptables rejects in table filter, after DNAT, and therefore also blocks
			// the pods, like kube-proxy: docs/security.md.
			name: "Services at addresses of pods", full: []plane{},
			before: func(s *attackTest) {
				var all []object
				for i := range s.pods {
					ip := harness.PodAddr(i).String()
					spec := object{
						"clusterIP": fmt.Sprintf("172.30.9.%d", i), "externalIPs": []string{ip}, "ports": []object{{"port": 80}},
					}
					all = append(all,
						harness.Service(fmt.Sprintf("cluster-ip-%d", i), object{"clusterIP": ip, "ports": []object{{"port": 80}}}),
						harness.Service(fmt.Sprintf("external-ip-%d", i), spec))
				}
				s.write("hostile.json", all) // without endpoints, so that they are rejected
			},
		},
		{
			// The programs of iptables read text, in which a value could be more than one word.
			name: "odd values in every field", planes: []plane{iptablesNFT}, full: others(iptablesNFT),
			duration: 2 * time.Second, limits: limits{cpu: 1, log: 3 << 20},
			before: func(s *attackTest) { s.write("hostile-0.json", oddValues(0)) },
			during: func(ctx context.Context, s *attackTest) error {
				s.pause(ctx, time.Second)
				return s.put("hostile-1.json", harness.Manifest(oddValues(1)))
			},
		},
		{
			name: "source ranges", full: others(nftables), alone: true, duration: 2 * time.Second, limits: limits{cpu: 1},
			during: func(_ context.Context, s *attackTest) error {
				return s.put("hostile.json", harness.Manifest(oddRanges()))
			},
			after: checkRanges,
		},
	}
}

// serveOnNode opens listeners of the node, and checks them after each change.
func serveOnNode(s *attackTest) {
	s.Helper()
	listeners := []netip.AddrPort{at(nodeAddr, 2222), at("192.168.1.2", 2222), at("2001:db8::1", 2222)}
	server := s.lab.NodeA.Serve(lab.TCP, 2222)
	s.checks = append(s.checks, func() {
		s.Helper()
		for _, to := range listeners {
			if r := s.lab.Outside.Try(lab.Probe{Protocol: lab.TCP, To: to}); r.Outcome != lab.Answered {
				s.recordFault(fmt.Sprintf("connection to %s, a listener of the node", to), r)
			}
		}
	})
	s.stops = append(s.stops, server.Close)
}

// nodeClaims are Services with addresses of the node in every field, and with the port of the health server.
func nodeClaims() []object {
	both := []string{nodeAddr, "192.168.1.2", "2001:db8::1"}
	own := []object{{"port": 9999}}
	var all []object
	for i, ip := range both {
		all = append(all, harness.Service(fmt.Sprintf("cluster-ip-%d", i),
			object{"clusterIP": ip, "clusterIPs": []string{ip}, "ports": own}))
	}
	balancer := harness.Service("balancer", object{"clusterIP": "172.30.9.2", "type": "LoadBalancer", "ports": own})
	ingress := []object{}
	for _, ip := range both {
		ingress = append(ingress, object{"ip": ip})
	}
	balancer["status"] = object{"loadBalancer": object{"ingress": ingress}}
	health := []object{{"name": "a", "port": 10256, "nodePort": 10256}, {"name": "b", "port": 10249, "nodePort": 10249}}
	return append(all, balancer,
		harness.Service("external", object{"clusterIP": "172.30.9.3", "externalIPs": both, "ports": own}),
		harness.Service("health", object{"clusterIP": "172.30.9.4", "type": "NodePort", "ports": health}),
		harness.Service("health-external", object{"clusterIP": "172.30.9.5", "externalIPs": both, "ports": health}),
		harness.EndpointSlice("health", "IPv4", []object{{"name": "a", "port": 80}}, harness.PodAddr(0).String()),
		harness.EndpointSlice("health-external", "IPv4", []object{{"name": "a", "port": 80}}, harness.PodAddr(0).String()),
	)
}

// oddFieldValues are put where addresses, names, ports and ranges are expected.
func oddFieldValues() []any {
	return []any{
		"", " ", "::ffff:192.168.0.2", "::ffff:172.30.0.80", "fe80::1%eth0", "fe80::1%25lo",
		"::", "0.0.0.0", "255.255.255.255",
		"224.0.0.1", "ff02::1", "127.0.0.1", "127.255.255.254", "::1", "172.030.000.080",
		"172.30.0.0x50", "172.30.80", "2886598736",
		"172.30.0.80/32", "[fd00::1]", "1.2.3.4:80", "999.1.1.1", "169.254.169.254", "192.168.0.2", "240.0.0.1",
		"None", "none", "null", "localhost", "example.com", "-1", "65536", "0", 0, -1, 65536,
		4294967376, 1e99, 80.5, true, nil,
		[]any{},
		object{},
		"x; flush ruleset", "a\nflush ruleset\n", "\"}; delete table inet sluice; {\"", "$(reboot)", "`reboot`",
		"-j ACCEPT", "--comment", "COMMIT\n*nat\n-F\nCOMMIT", "\x1b[2J\x1b]0;owned\x07", "a\x00b",
		"a\u202eb", "\ufeff", "☃", "%s%n",
		"../../etc/passwd", strings.Repeat("a", 64), strings.Repeat("a", 300), strings.Repeat("1", 100_000),
		"UDP", "tcp", "SCTP", "Local",
	}
}

// oddValues are Services and slices with one odd value each. The names differ by generation, so
// that a second generation replaces nothing.
func oddValues(generation int) []object {
	var all []object
	for i, odd := range oddFieldValues() {
		for _, field := range []string{
			"clusterIP", "clusterIPs.0", "externalIPs.0", "loadBalancerIP", "loadBalancerSourceRanges.0", "ipFamilies.0",
			"type", "sessionAffinity", "internalTrafficPolicy", "externalTrafficPolicy",
			"trafficDistribution", "healthCheckNodePort",
			"ports.0.port", "ports.0.nodePort", "ports.0.targetPort", "ports.0.protocol", "ports.0.name", "ports.0.appProtocol",
			"sessionAffinityConfig.clientIP.timeoutSeconds", "status.loadBalancer.ingress.0.ip",
			"status.loadBalancer.ingress.0.ipMode",
			"metadata.name", "metadata.namespace", "metadata.uid", "metadata.creationTimestamp",
			"metadata.labels.a", "metadata.annotations.a",
			"metadata.generation", "apiVersion",
		} {
			o := harness.Service(fmt.Sprintf("odd-%d-%d", generation, len(all)), object{
				"clusterIP": fmt.Sprintf("172.29.%d.%d", len(all)/250, 1+len(all)%250), "type": "LoadBalancer",
				"ports": []object{{"port": 80}},
			})
			o["metadata"].(object)["creationTimestamp"] = "2026-02-01T00:00:00Z" // younger than good ones
			root := o
			if top, _, _ := strings.Cut(field, "."); !slices.Contains([]string{"metadata", "status", "apiVersion"}, top) {
				root = o["spec"].(object)
			}
			set(root, strings.Split(field, "."), odd)
			all = append(all, o)
		}
		for _, field := range []string{
			"addressType", "endpoints.0.addresses.0", "endpoints.0.nodeName", "endpoints.0.zone",
			"endpoints.0.hints.forZones.0.name",
			"endpoints.0.conditions.ready", "ports.0.port", "ports.0.name", "ports.0.protocol",
		} {
			o := harness.EndpointSlice(fmt.Sprintf("odd-%d-%d", generation, i), "IPv4", []object{{"port": 80}}, "10.180.9.9")
			o["metadata"].(object)["name"] = fmt.Sprintf("odd-slice-%d-%d", generation, len(all))
			set(o, strings.Split(field, "."), odd)
			all = append(all, o)
		}
	}
	return all
}

// set sets a value in nested maps and lists, which it creates if needed; "0" is the first element of a list.
func set(in object, path []string, value any) {
	key := path[0]
	switch {
	case len(path) == 1:
		in[key] = value
	case path[1] == "0" && len(path) == 2:
		in[key] = []any{value}
	case path[1] == "0":
		element := object{}
		if list, ok := in[key].([]object); ok {
			element = list[0]
		}
		set(element, path[2:], value)
		in[key] = []object{element}
	default:
		next, ok := in[key].(object)
		if !ok {
			next = object{}
		}
		set(next, path[1:], value)
		in[key] = next
	}
}

// The addresses of the Services of oddRanges.
const rangedIP, openIP, garbledIP, crowdedIP = "198.51.100.10", "198.51.100.11", "198.51.100.12", "198.51.100.13"

// oddRanges are LoadBalancers with 10,000 source ranges, which is more than a plane programs, with 2,000, with ranges
// that admit all clients, and with malformed ones beside 0.0.0.0/0 in its form as an IPv6 prefix.
func oddRanges() []object {
	tooMany := make([]string, 0, 10_000)
	for i := range cap(tooMany) {
		tooMany = append(tooMany, fmt.Sprintf("10.%d.%d.0/25", 200+i>>8&31, i&255))
	}
	many := append(slices.Clone(tooMany[:2000]), "203.0.113.0/25")
	var all []object
	for ip, ranges := range map[string][]string{
		crowdedIP: tooMany, rangedIP: many, openIP: {"0.0.0.0/0", "::/0", "0.0.0.0/0", " 10.0.0.0/8 "},
		garbledIP: {"10.0.0.0/33", "x", "1.2.3.4", "", "::ffff:0:0/96"},
	} {
		name := "ranges-" + ip[len(ip)-2:]
		o := harness.Service(name, object{
			"clusterIP": "172.30.9." + ip[len(ip)-2:], "type": "LoadBalancer", "ports": []object{{"port": 80}},
			"loadBalancerSourceRanges": ranges,
		})
		o["status"] = object{"loadBalancer": object{"ingress": []object{{"ip": ip}}}}
		all = append(all, o, harness.EndpointSlice(name, "IPv4", []object{{"port": 80}}, harness.PodAddr(0).String()))
	}
	return all
}

// checkRanges verifies which clients the source ranges admit.
func checkRanges(s *attackTest) {
	s.Helper()
	s.write("hostile.json", oddRanges())
	s.eventually(changeTimeout(), func() error {
		for _, ip := range []string{rangedIP, openIP, garbledIP} {
			if !s.answers(s.lab.Outside, at(ip, 80), s.pods[0]) {
				return fmt.Errorf("%s does not answer a client in its source ranges", ip)
			}
		}
		return nil
	})
	r := s.lab.Blocked.Try(lab.Probe{Protocol: lab.TCP, To: at(rangedIP, 80), Timeout: lab.Soon})
	if r.Outcome == lab.Answered {
		s.Errorf("%s answers a client outside of its source ranges", rangedIP)
	}
	s.removeHostile()
}
