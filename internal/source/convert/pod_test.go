package convert

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// pod returns a running and ready Pod with the label app=web, changed by mutate.
func pod(name, ip string, mutate func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": "web", "more": "x"}},
		Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{
			Ports: []corev1.ContainerPort{
				{Name: "http", ContainerPort: 8080}, {Name: "dns", ContainerPort: 5353, Protocol: "UDP"},
			},
		}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
	mutate(p)
	return p
}

func unchanged(*corev1.Pod) {}

func TestPodsOfAService(t *testing.T) {
	ready := func(ip string) cluster.Endpoint {
		return cluster.Endpoint{Addr: addrs(ip)[0], Node: "n1", Ready: true, Serving: true}
	}
	http := []cluster.SlicePort{{Name: "http", Protocol: cluster.TCP, Port: 8080}}
	named := func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromString("http") }
	type group struct {
		Ports     []cluster.SlicePort
		Endpoints []cluster.Endpoint
	}
	cases := []struct {
		name string
		svc  func(*corev1.Service)
		pods []*corev1.Pod
		want []group
	}{
		{
			"named port", named,
			[]*corev1.Pod{pod("a", "10.0.0.1", unchanged), pod("b", "10.0.0.2", unchanged)},
			[]group{{http, []cluster.Endpoint{ready("10.0.0.1"), ready("10.0.0.2")}}},
		},
		{
			"no targetPort means the port", func(*corev1.Service) {},
			[]*corev1.Pod{pod("a", "10.0.0.1", unchanged)},
			[]group{
				{[]cluster.SlicePort{{Name: "http", Protocol: cluster.TCP, Port: 80}}, []cluster.Endpoint{ready("10.0.0.1")}},
			},
		},
		{
			"named port of different numbers", named,
			[]*corev1.Pod{pod("a", "10.0.0.1", unchanged), pod("b", "10.0.0.2", func(p *corev1.Pod) {
				p.Spec.Containers[0].Ports[0].ContainerPort = 9090
			})},
			[]group{
				{http, []cluster.Endpoint{ready("10.0.0.1")}},
				{[]cluster.SlicePort{{Name: "http", Protocol: cluster.TCP, Port: 9090}}, []cluster.Endpoint{ready("10.0.0.2")}},
			},
		},
		{
			"a pod without the named port", func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromString("dns") },
			[]*corev1.Pod{pod("a", "10.0.0.1", unchanged)}, // its port dns is UDP
			[]group{{nil, []cluster.Endpoint{ready("10.0.0.1")}}},
		},
		{
			"both families", named,
			[]*corev1.Pod{pod("a", "10.0.0.1", func(p *corev1.Pod) {
				p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: "fd00::1"})
			})},
			[]group{{http, []cluster.Endpoint{ready("10.0.0.1"), ready("fd00::1")}}},
		},
		{
			"only the families of the Service", func(s *corev1.Service) {
				named(s)
				s.Spec.ClusterIPs, s.Spec.IPFamilies = s.Spec.ClusterIPs[:1], s.Spec.IPFamilies[:1]
			},
			[]*corev1.Pod{pod("a", "10.0.0.1", func(p *corev1.Pod) {
				p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: "fd00::1"})
			})},
			[]group{{http, []cluster.Endpoint{ready("10.0.0.1")}}},
		},
		{"not ready, terminating, pending", named, []*corev1.Pod{
			pod("a", "10.0.0.1", func(p *corev1.Pod) { p.Status.Conditions = nil }),
			pod("b", "10.0.0.2", func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }),
			pod("c", "10.0.0.3", func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }),
		}, []group{{http, []cluster.Endpoint{
			{Addr: addrs("10.0.0.1")[0], Node: "n1"},
			{Addr: addrs("10.0.0.2")[0], Node: "n1", Serving: true, Terminating: true},
			{Addr: addrs("10.0.0.3")[0], Node: "n1"},
		}}}},
		{"publishNotReadyAddresses", func(s *corev1.Service) {
			named(s)
			s.Spec.PublishNotReadyAddresses = true
		}, []*corev1.Pod{
			pod("a", "10.0.0.1", func(p *corev1.Pod) { p.Status.Conditions = nil }),
			pod("b", "10.0.0.2", func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }),
		}, []group{{http, []cluster.Endpoint{
			{Addr: addrs("10.0.0.1")[0], Node: "n1", Ready: true},
			{Addr: addrs("10.0.0.2")[0], Node: "n1", Ready: true, Serving: true, Terminating: true},
		}}}},
		{"other Pods are not selected", named, []*corev1.Pod{
			pod("a", "10.0.0.1", func(p *corev1.Pod) { p.Labels["app"] = "db" }),
			pod("b", "10.0.0.2", func(p *corev1.Pod) { p.Namespace = "other" }),
			pod("c", "10.0.0.3", func(p *corev1.Pod) { p.Labels = nil }),
		}, nil},
		{"done, failed, without address", named, []*corev1.Pod{
			pod("a", "10.0.0.1", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
			pod("b", "10.0.0.2", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }),
			pod("c", "", unchanged),
		}, nil},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			sel := selection(func(s *corev1.Service) {
				s.Spec.Selector = map[string]string{"app": "web"}
				tc.svc(s)
			})
			var pods []*Pod
			for _, p := range tc.pods {
				if got, problems := (Converter{}).Pod(p); len(problems) > 0 {
					t.Errorf("Pod %s: %v", p.Name, problems)
				} else if got != nil {
					pods = append(pods, got)
				}
			}
			var got []group
			for i, sl := range sel.Slices(pods) {
				if sl.Name != derivedName(sel.Service, "pods", pods[i].Name.Name) || sl.Service != sel.Service {
					t.Errorf("slice %d has the name %v and the Service %v", i, sl.Name, sl.Service)
				}
				if n := len(got); n > 0 && slices.Equal(got[n-1].Ports, sl.Ports) {
					got[n-1].Endpoints = append(got[n-1].Endpoints, sl.Endpoints...)
					continue
				}
				got = append(got, group{sl.Ports, sl.Endpoints})
			}
			if d := diff(tc.want, got); d != "" {
				t.Errorf("slices (-want +got):\n%s", d)
			}
		})
	}
}

// selection returns the Selection of a Service, changed by mutate.
func selection(mutate func(*corev1.Service)) *Selection {
	var c Converter
	in := service(mutate)
	out, _ := c.Service(in)
	return c.Selection(in, out)
}

func TestSelectionOfNothing(t *testing.T) {
	for name, mutate := range map[string]func(*corev1.Service){
		"no selector": func(*corev1.Service) {},
		"headless": func(s *corev1.Service) {
			s.Spec.Selector, s.Spec.ClusterIPs, s.Spec.ClusterIP = map[string]string{"a": "b"}, nil, "None"
		},
	} {
		if sel := selection(mutate); sel != nil {
			t.Errorf("%s: the Selection is %v", name, sel)
		}
	}
}

func TestPodBadAddress(t *testing.T) {
	got, problems := Converter{}.Pod(pod("a", "127.0.0.1", unchanged))
	if got != nil {
		t.Errorf("got the Pod %v, want none", got)
	}
	if d := diff([]string{"status.podIPs[0] 127.0.0.1"}, fieldsOf(t, "Pod default/a", problems)); d != "" {
		t.Errorf("problems (-want +got):\n%s", d)
	}
}
