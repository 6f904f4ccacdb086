package convert

import (
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The annotation of Cilium has the weight of all endpoints of a slice. Another text is a problem, and is ignored.
func TestWeightOfASlice(t *testing.T) {
	for text, want := range map[string]int{
		"": -1, "0": 0, "1": 1, "70": 70, "65535": 65535, "65536": -1, "-1": -1, "7.5": -1, " 7": -1, "none": -1,
	} {
		es := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
				Annotations: map[string]string{AnnotationSliceWeight: text},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
		}
		got, problems := (&Converter{}).Slice(es)
		is := -1
		if got.Weight != nil {
			is = int(*got.Weight)
		}
		if is != want || (len(problems) > 0) != (want < 0) {
			t.Errorf("%q: weight %d, problems %v, want %d", text, is, problems, want)
		}
		for _, p := range problems {
			if p.Object != "EndpointSlice default/web-1" || p.Value != text ||
				p.Field != "metadata.annotations[service.cilium.io/weight]" {
				t.Errorf("%q: problem %+v", text, p)
			}
		}
	}
	if got, problems := (&Converter{}).Slice(&discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}); got.Weight != nil || problems != nil {
		t.Errorf("without the annotation: %v, %v", got.Weight, problems)
	}
}

// The annotation has weights by node and by address. An invalid entry is left out with a problem that names the
// Service, the annotation and the entry; the others apply.
func TestWeights(t *testing.T) {
	for _, c := range []struct {
		text  string
		want  map[string]uint16
		wrong string // the values of problems
	}{
		{"", nil, ""},
		{" , ", nil, ""},
		{"node-a=3", map[string]uint16{"node-a": 3}, ""},
		{
			"node-a=3,10.0.0.1=0, 2001:DB8::1 = 65535,",
			map[string]uint16{"node-a": 3, "10.0.0.1": 0, "2001:db8::1": 65535},
			"",
		},
		{"::ffff:10.0.0.1=2", map[string]uint16{"10.0.0.1": 2}, ""},
		{
			"a=1, b=65536, c=-1, d=1.5, =4, Node=2, x/y=1, g=2",
			map[string]uint16{"a": 1, "g": 2},
			"b=65536 c=-1 d=1.5 =4 Node=2 x/y=1",
		},
		{"e, f=, g=2", map[string]uint16{"g": 2}, "e f="},
		{"a=1, a=2", map[string]uint16{"a": 1}, "a=2"},
	} {
		svc := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: "web", Annotations: map[string]string{AnnotationWeights: c.text},
			},
			Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1"},
		}
		got, problems := (&Converter{}).Service(svc)
		var wrong []string
		for _, p := range problems {
			if p.Object != "Service default/web" || p.Field != "metadata.annotations[sluice-proxy.github.io/weights]" ||
				p.Reason == "" {
				t.Errorf("%q: problem %+v", c.text, p)
			}
			if p.Value != "" {
				wrong = append(wrong, p.Value)
			}
		}
		if list := strings.Join(wrong, " "); !maps.Equal(got.Weights, c.want) || list != c.wrong {
			t.Errorf("%q: weights %v, problems with %q, want %v and %q", c.text, got.Weights, list, c.want, c.wrong)
		}
	}
}
