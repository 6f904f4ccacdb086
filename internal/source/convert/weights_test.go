package convert

import (
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
