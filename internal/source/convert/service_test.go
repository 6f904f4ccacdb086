package convert

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// diff compares values; nil and empty lists are equal.
func diff(want, got any) string {
	return cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}))
}

// fieldsOf returns the fields and values of problems. It verifies their object, and that they have a reason.
func fieldsOf(t *testing.T, object string, problems []route.Problem) []string {
	t.Helper()
	var out []string
	for _, p := range problems {
		if p.Object != object {
			t.Errorf("a problem of %q, want %q: %v", p.Object, object, p)
		}
		if p.Reason == "" {
			t.Errorf("a problem without a reason: %+v", p)
		}
		out = append(out, p.Field+" "+p.Value)
	}
	return out
}

func addrs(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range texts {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func cidrs(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

var created = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// service returns a plain dual-stack Service, changed by mutate.
func service(mutate func(*corev1.Service)) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", CreationTimestamp: metav1.NewTime(created)},
		Spec: corev1.ServiceSpec{
			Type:       corev1.ServiceTypeClusterIP,
			ClusterIP:  "10.96.0.10",
			ClusterIPs: []string{"10.96.0.10", "fd00:96::10"},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			Ports:      []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
	mutate(svc)
	return svc
}

// converted returns the conversion of the plain Service, changed by mutate.
func converted(mutate func(*cluster.Service)) *cluster.Service {
	svc := &cluster.Service{
		Name:       cluster.Name{Namespace: "default", Name: "web"},
		Created:    created,
		ClusterIPs: addrs("10.96.0.10", "fd00:96::10"),
		Ports:      []cluster.ServicePort{{Name: "http", Protocol: cluster.TCP, Port: 80}},
	}
	mutate(svc)
	return svc
}

type serviceCase struct {
	name     string
	in       func(*corev1.Service)
	want     func(*cluster.Service)
	problems []string
}

func runServices(t *testing.T, c Converter, cases []serviceCase) {
	t.Helper()
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			if tc.want == nil {
				tc.want = func(*cluster.Service) {}
			}
			in := service(tc.in)
			before := in.DeepCopy()
			got, problems := c.Service(in)
			if d := diff(converted(tc.want), got); d != "" {
				t.Errorf("Service (-want +got):\n%s", d)
			}
			if d := diff(tc.problems, fieldsOf(t, "Service default/web", problems)); d != "" {
				t.Errorf("problems (-want +got):\n%s", d)
			}
			if d := cmp.Diff(before, in); d != "" {
				t.Errorf("the input was changed:\n%s", d)
			}
		})
	}
}

// onlyIgnored returns a function that makes a Service the conversion of one that is not programmed.
func onlyIgnored(reason string, labels ...string) func(*cluster.Service) {
	return func(s *cluster.Service) {
		*s = cluster.Service{Name: s.Name, Created: s.Created, Ignored: reason, Labels: strings.Join(labels, ",")}
	}
}

func TestServiceIgnored(t *testing.T) {
	runServices(t, Converter{AllowExternalIPs: true}, []serviceCase{
		{name: "S-239 headless", in: func(s *corev1.Service) {
			s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"}
		}, want: onlyIgnored("headless")},
		{name: "headless only in clusterIPs", in: func(s *corev1.Service) {
			s.Spec.ClusterIP, s.Spec.ClusterIPs = "", []string{"None"}
		}, want: onlyIgnored("headless")},
		{name: "ExternalName with a clusterIP", in: func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeExternalName
		}, want: onlyIgnored("ExternalName")},
		{name: "S-236 for another proxy", in: func(s *corev1.Service) {
			s.Labels = map[string]string{"a": "b", LabelProxyName: "foo"}
		}, want: onlyIgnored("label service.kubernetes.io/service-proxy-name=foo", "a=b", LabelProxyName+"=foo")},
		{name: "for another proxy without a name", in: func(s *corev1.Service) {
			s.Labels = map[string]string{LabelProxyName: ""}
		}, want: onlyIgnored("label service.kubernetes.io/service-proxy-name=", LabelProxyName+"=")},
		{name: "no clusterIP", in: func(s *corev1.Service) {
			s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil
		}, want: onlyIgnored("no clusterIP"), problems: []string{"spec.clusterIP "}},
		{name: "no usable clusterIP", in: func(s *corev1.Service) {
			s.Spec.ClusterIP, s.Spec.ClusterIPs = "10.96.0", nil
		}, want: onlyIgnored("no clusterIP"), problems: []string{"spec.clusterIPs[0] 10.96.0", "spec.clusterIP "}},
	})
}

// Addresses outside of the ranges are left out and reported; the Service keeps its others.
func TestServiceOutsideOfRanges(t *testing.T) {
	ranges := func(list ...string) (out []netip.Prefix) {
		for _, text := range list {
			out = append(out, netip.MustParsePrefix(text))
		}
		return out
	}
	with := func(s *corev1.Service) {
		s.Spec.ExternalIPs = []string{"198.51.100.1", "203.0.113.1", "2001:db8:100::1"}
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.7"}, {IP: "198.51.100.7"}}
	}
	c := Converter{AllowExternalIPs: true, ExternalIPs: ranges("198.51.100.0/24", "2001:db8::/32")}
	runServices(t, c, []serviceCase{
		{name: "external IPs", in: with, want: func(s *cluster.Service) {
			s.ExternalIPs, s.LoadBalancerIPs = addrs("198.51.100.1", "2001:db8:100::1"), addrs("203.0.113.7", "198.51.100.7")
		}, problems: []string{"spec.externalIPs[1] 203.0.113.1"}},
	})
	runServices(t, Converter{AllowExternalIPs: true, LoadBalancerIPs: ranges("203.0.113.0/24")}, []serviceCase{
		{name: "load balancer addresses", in: with, want: func(s *cluster.Service) {
			s.ExternalIPs = addrs("198.51.100.1", "203.0.113.1", "2001:db8:100::1")
			s.LoadBalancerIPs = addrs("203.0.113.7")
		}, problems: []string{"status.loadBalancer.ingress[1].ip 198.51.100.7"}},
	})
}

func TestServiceClusterIPs(t *testing.T) {
	v4only := func(s *cluster.Service) { s.ClusterIPs = addrs("10.96.0.10") }
	runServices(t, Converter{}, []serviceCase{
		{name: "dual-stack", in: func(*corev1.Service) {}},
		{name: "only clusterIP", in: func(s *corev1.Service) {
			s.Spec.ClusterIPs, s.Spec.IPFamilies = nil, nil
		}, want: v4only},
		{name: "clusterIP and families", in: func(s *corev1.Service) {
			s.Spec.ClusterIPs, s.Spec.IPFamilies = nil, s.Spec.IPFamilies[:1]
		}, want: v4only},
		{name: "clusterIPs without families", in: func(s *corev1.Service) { s.Spec.IPFamilies = nil }},
		{name: "S-245 legacy spelling", in: func(s *corev1.Service) {
			s.Spec.ClusterIP, s.Spec.ClusterIPs = "10.096.00.010", []string{"10.096.00.010", "fd00:0096::10"}
		}},
		{name: "not of the family in ipFamilies", in: func(s *corev1.Service) {
			s.Spec.ClusterIPs[1] = "10.96.0.11"
		}, want: v4only, problems: []string{"spec.clusterIPs[1] 10.96.0.11"}},
		{name: "more addresses than families", in: func(s *corev1.Service) {
			s.Spec.IPFamilies = s.Spec.IPFamilies[:1]
		}, want: v4only, problems: []string{"spec.clusterIPs[1] fd00:96::10"}},
		{name: "two of one family", in: func(s *corev1.Service) {
			s.Spec.ClusterIPs[1], s.Spec.IPFamilies = "10.96.0.11", nil
		}, want: v4only, problems: []string{"spec.clusterIPs[1] 10.96.0.11"}},
		{name: "loopback", in: func(s *corev1.Service) {
			s.Spec.ClusterIPs[1] = "::1"
		}, want: v4only, problems: []string{"spec.clusterIPs[1] ::1"}},
		{name: "addresses of a family without clusterIP", in: func(s *corev1.Service) {
			s.Spec.ClusterIPs, s.Spec.IPFamilies = s.Spec.ClusterIPs[:1], s.Spec.IPFamilies[:1]
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "2001:db8::1"}, {IP: "192.0.2.1"}}
		}, want: func(s *cluster.Service) {
			v4only(s)
			s.LoadBalancerIPs = addrs("192.0.2.1")
		}, problems: []string{"status.loadBalancer.ingress[0].ip 2001:db8::1"}},
	})
}

func TestServiceExternalAddresses(t *testing.T) {
	runServices(t, Converter{AllowExternalIPs: true}, []serviceCase{
		{name: "S-245 S-246 externalIPs", in: func(s *corev1.Service) {
			s.Spec.ExternalIPs = []string{"", "garbage", "192.168.099.022", "192.168.99.22", "2001:db8::1", " "}
		}, want: func(s *cluster.Service) {
			s.ExternalIPs = addrs("192.168.99.22", "2001:db8::1")
		}, problems: []string{"spec.externalIPs[1] garbage"}},
		{name: "special externalIPs", in: func(s *corev1.Service) {
			s.Spec.ExternalIPs = []string{"127.0.0.1", "0.0.0.0", "169.254.169.254", "ff02::1", "::"}
		}, problems: []string{
			"spec.externalIPs[0] 127.0.0.1", "spec.externalIPs[1] 0.0.0.0", "spec.externalIPs[2] 169.254.169.254",
			"spec.externalIPs[3] ff02::1", "spec.externalIPs[4] ::",
		}},
		{name: "load balancer ingress", in: func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
				{IP: "1.2.03.4"},
				{IP: "1.2.3.4", IPMode: ptr.To(corev1.LoadBalancerIPModeVIP)},
				{IP: "1.2.3.5", IPMode: ptr.To(corev1.LoadBalancerIPModeProxy)},
				{Hostname: "lb.example"},
				{IP: "nonsense"},
				{IP: "2001:db8::7"},
			}
		}, want: func(s *cluster.Service) {
			s.Type = cluster.LoadBalancer
			s.LoadBalancerIPs = addrs("1.2.3.4", "2001:db8::7")
		}, problems: []string{"status.loadBalancer.ingress[4].ip nonsense"}},
		{name: "ingress is used for every type", in: func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "1.2.3.4"}}
		}, want: func(s *cluster.Service) { s.LoadBalancerIPs = addrs("1.2.3.4") }},
	})
	runServices(t, Converter{}, []serviceCase{
		{name: "S-250 externalIPs not allowed", in: func(s *corev1.Service) {
			s.Spec.ExternalIPs = []string{"192.0.2.1", "garbage"}
		}},
	})
}

func TestServiceSourceRanges(t *testing.T) {
	runServices(t, Converter{}, []serviceCase{
		{name: "trimmed, canonical, once", in: func(s *corev1.Service) {
			s.Spec.LoadBalancerSourceRanges = []string{" 203.0.113.000/025 ", "", "203.0.113.5/25", "2001:db8::/32"}
		}, want: func(s *cluster.Service) {
			s.Restricted, s.SourceRanges = true, cidrs("203.0.113.0/25", "2001:db8::/32")
		}},
		{name: "S-253 no usable range admits no client", in: func(s *corev1.Service) {
			s.Spec.LoadBalancerSourceRanges = []string{"garbage", "10.0.0.1"}
		}, want: func(s *cluster.Service) { s.Restricted = true }, problems: []string{
			"spec.loadBalancerSourceRanges[0] garbage", "spec.loadBalancerSourceRanges[1] 10.0.0.1",
		}},
		{name: "blank ranges do not restrict", in: func(s *corev1.Service) {
			s.Spec.LoadBalancerSourceRanges = []string{"", " "}
		}},
	})
}

func TestServicePorts(t *testing.T) {
	set := func(ports ...corev1.ServicePort) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.Ports = ports }
	}
	want := func(ports ...cluster.ServicePort) func(*cluster.Service) {
		return func(s *cluster.Service) { s.Ports = ports }
	}
	long := "a23456789-123456789-123456789-123456789-123456789-123456789-123" // 63
	runServices(t, Converter{Strings: NewInterner()}, []serviceCase{
		{
			name: "no name, no protocol", in: set(corev1.ServicePort{Port: 443}),
			want: want(cluster.ServicePort{Protocol: cluster.TCP, Port: 443}),
		},
		{
			name: "S-251 long names", in: set(corev1.ServicePort{Name: long, Port: 1}),
			want: want(cluster.ServicePort{Name: long, Protocol: cluster.TCP, Port: 1}),
		},
		{name: "one number, three protocols", in: set(
			corev1.ServicePort{Name: "t", Protocol: "TCP", Port: 53, NodePort: 30053},
			corev1.ServicePort{Name: "u", Protocol: "UDP", Port: 53, NodePort: 30053},
			corev1.ServicePort{Name: "s", Protocol: "SCTP", Port: 53},
		), want: want(
			cluster.ServicePort{Name: "t", Protocol: cluster.TCP, Port: 53, NodePort: 30053},
			cluster.ServicePort{Name: "u", Protocol: cluster.UDP, Port: 53, NodePort: 30053},
			cluster.ServicePort{Name: "s", Protocol: cluster.SCTP, Port: 53},
		)},
		{name: "only invalid ports are left out", in: set(
			corev1.ServicePort{Name: "zero"},
			corev1.ServicePort{Name: "high", Port: 65536},
			corev1.ServicePort{Name: "proto", Port: 1, Protocol: "DCCP"},
			corev1.ServicePort{Name: "Not a name\n", Port: 2},
			corev1.ServicePort{Name: "nodeport", Port: 3, NodePort: 70000},
			corev1.ServicePort{Name: "good", Port: 80},
			corev1.ServicePort{Name: "good", Port: 81},
			corev1.ServicePort{Name: "again", Port: 80},
		), want: want(
			cluster.ServicePort{Name: "nodeport", Protocol: cluster.TCP, Port: 3},
			cluster.ServicePort{Name: "good", Protocol: cluster.TCP, Port: 80},
		), problems: []string{
			"spec.ports[0].port 0", "spec.ports[1].port 65536", "spec.ports[2].protocol DCCP",
			"spec.ports[3].name Not a name\n", "spec.ports[4].nodePort 70000", "spec.ports[6] good", "spec.ports[7] again",
		}},
	})
}

func TestServiceAffinity(t *testing.T) {
	set := func(config *corev1.SessionAffinityConfig) func(*corev1.Service) {
		return func(s *corev1.Service) {
			s.Spec.SessionAffinity, s.Spec.SessionAffinityConfig = corev1.ServiceAffinityClientIP, config
		}
	}
	seconds := func(n int32) *corev1.SessionAffinityConfig {
		return &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &n}}
	}
	want := func(d time.Duration) func(*cluster.Service) {
		return func(s *cluster.Service) { s.Affinity = d }
	}
	const field = "spec.sessionAffinityConfig.clientIP.timeoutSeconds "
	runServices(t, Converter{}, []serviceCase{
		{name: "set", in: set(seconds(60)), want: want(time.Minute)},
		{name: "longest", in: set(seconds(86400)), want: want(24 * time.Hour)},
		{name: "S-252 no config", in: set(nil), want: want(3 * time.Hour)},
		{name: "S-252 no client config", in: set(&corev1.SessionAffinityConfig{}), want: want(3 * time.Hour)},
		{
			name: "S-252 no timeout", in: set(&corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{}}),
			want: want(3 * time.Hour),
		},
		{name: "zero", in: set(seconds(0)), want: want(3 * time.Hour), problems: []string{field + "0"}},
		{name: "too long", in: set(seconds(86401)), want: want(3 * time.Hour), problems: []string{field + "86401"}},
		{
			name: "unknown", in: func(s *corev1.Service) { s.Spec.SessionAffinity = "Cookie" },
			problems: []string{"spec.sessionAffinity Cookie"},
		},
		{name: "config without affinity", in: func(s *corev1.Service) { s.Spec.SessionAffinityConfig = seconds(5) }},
	})
}

func TestServicePolicies(t *testing.T) {
	runServices(t, Converter{}, []serviceCase{
		{name: "local", in: func(s *corev1.Service) {
			s.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			s.Spec.HealthCheckNodePort = 32000
		}, want: func(s *cluster.Service) { s.InternalLocal, s.ExternalLocal = true, true }},
		{name: "health check port", in: func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			s.Spec.HealthCheckNodePort = 32000
		}, want: func(s *cluster.Service) {
			s.Type, s.ExternalLocal, s.HealthCheckNodePort = cluster.LoadBalancer, true, 32000
		}},
		{name: "no health check under Cluster", in: func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
			s.Spec.HealthCheckNodePort = 32000
		}, want: func(s *cluster.Service) { s.Type = cluster.LoadBalancer }},
		{name: "cluster", in: func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeNodePort
			s.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyCluster)
		}, want: func(s *cluster.Service) { s.Type = cluster.NodePort }},
		{name: "unknown values", in: func(s *corev1.Service) {
			s.Spec.Type = "Magic"
			s.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicy("Near"))
			s.Spec.ExternalTrafficPolicy = "Far"
		}, problems: []string{"spec.type Magic", "spec.internalTrafficPolicy Near", "spec.externalTrafficPolicy Far"}},
		{name: "bad health check port", in: func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
			s.Spec.HealthCheckNodePort = -1
		}, want: func(s *cluster.Service) {
			s.Type, s.ExternalLocal = cluster.LoadBalancer, true
		}, problems: []string{"spec.healthCheckNodePort -1"}},
	})
}

// The annotation of kube-proxy on Windows has one value.
func TestPreserveDestination(t *testing.T) {
	for value, want := range map[string]bool{"true": true, "false": false, "True": false, "": false} {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{AnnotationPreserve: value}}}
		svc.Spec.ClusterIP = "10.96.0.1"
		if got, problems := (Converter{}).Service(svc); got.PreserveDestination != want || len(problems) > 0 {
			t.Errorf("%q: %+v, %v", value, got, problems)
		}
	}
}
