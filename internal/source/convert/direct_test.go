package convert

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The annotation requests that nodes pass connections on. Another value, and a mode without this, are problems.
func TestDirect(t *testing.T) {
	const at = "Service default/web: metadata.annotations[sluice-proxy.github.io/external]: "
	for _, c := range []struct {
		value    string
		convert  Converter
		want     bool
		problems []string
	}{
		{"", Converter{}, false, nil},
		{"", Converter{AllDirect: true}, false, nil},
		{"", Converter{Direct: true, AllDirect: true}, true, nil},
		{"cluster", Converter{Direct: true, AllDirect: true}, false, nil},
		{"no", Converter{Direct: true, AllDirect: true}, true, []string{at + "no: ignored: expected direct or cluster"}},
		{"direct", Converter{Direct: true}, true, nil},
		{"Direct", Converter{Direct: true}, false, []string{at + "Direct: ignored: expected direct or cluster"}},
		{"direct", Converter{Mode: "iptables"}, true, []string{
			at + "direct: mode iptables cannot do this and serves external addresses as without the annotation",
		}},
	} {
		annotations := map[string]string{AnnotationExternal: c.value}
		if c.value == "" {
			annotations = nil
		}
		svc := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Annotations: annotations},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", Type: corev1.ServiceTypeLoadBalancer},
		}
		got, problems := c.convert.Service(svc)
		var texts []string
		for _, p := range problems {
			texts = append(texts, p.String())
		}
		if got.Direct != c.want || !slices.Equal(texts, c.problems) {
			t.Errorf("%q: %v, problems %q, want %v, %q", c.value, got.Direct, texts, c.want, c.problems)
		}
	}
}

// The annotation has no effect on a Service without external addresses, or with policy Local, which says so.
func TestDirectWithoutEffect(t *testing.T) {
	const local = corev1.ServiceExternalTrafficPolicyLocal
	for _, c := range []struct {
		spec   corev1.ServiceSpec
		reason string
	}{
		{corev1.ServiceSpec{ExternalIPs: []string{"192.0.2.1"}}, ""},
		{
			corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort},
			"no effect without a load balancer or externalIP: a NodePort has the address of one node, and is lost with it",
		},
		{
			corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: local},
			"no effect with externalTrafficPolicy Local",
		},
	} {
		if got := (Converter{Direct: true}).notDirect(&corev1.Service{Spec: c.spec}); got != c.reason {
			t.Errorf("type %q, policy %q: got %q, want %q", c.spec.Type, c.spec.ExternalTrafficPolicy, got, c.reason)
		}
	}
}
