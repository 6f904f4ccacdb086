package convert

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// The annotation comes before the configuration; a bad value is a problem, and the configuration counts.
func TestEjectionOfServices(t *testing.T) {
	on, three := cluster.Ejection{Clients: 2, Row: 5}, cluster.Ejection{Clients: 3, Row: 5}
	for _, c := range []struct {
		annotations map[string]string
		config      cluster.Ejection
		want        cluster.Ejection
		problem     string
	}{
		{nil, cluster.Ejection{}, cluster.Ejection{}, ""},
		{nil, on, on, ""},
		{map[string]string{AnnotationEjection: "on"}, cluster.Ejection{}, on, ""},
		{map[string]string{AnnotationEjection: "off"}, on, cluster.Ejection{}, ""},
		{map[string]string{AnnotationEjection: "clients=3"}, on, three, ""},
		{
			map[string]string{AnnotationEjection: "yes"},
			on, on,
			"Service default/web: metadata.annotations[sluice-proxy.github.io/ejection]: yes: " +
				"ignored: expected on, off, or thresholds from 2 to 16 such as clients=2,row=5",
		},
	} {
		svc := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Annotations: c.annotations},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 80}}},
		}
		got, problems := Converter{Mode: "nftables", Ejects: true, Ejection: c.config}.Service(svc)
		text := ""
		for _, p := range problems {
			text += p.String()
		}
		if got.Ejection != c.want || text != c.problem {
			t.Errorf("%v beside %v: %v, %q\nwant %v, %q", c.annotations, c.config, got.Ejection, text, c.want, c.problem)
		}
	}
}

// In a mode that cannot eject, a Service that asks for it has a problem, and nothing else changes.
func TestEjectionInOtherModes(t *testing.T) {
	for value, problem := range map[string]string{
		"off": "",
		"on": "Service default/web: metadata.annotations[sluice-proxy.github.io/ejection]: on: " +
			"mode ipvs does not eject endpoints: they keep their share when connections to them fail",
	} {
		svc := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: "web", Annotations: map[string]string{AnnotationEjection: value},
			},
			Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 80}}},
		}
		got, problems := Converter{Mode: "ipvs", Ejection: cluster.Ejection{Clients: 2, Row: 5}}.Service(svc)
		text := ""
		for _, p := range problems {
			text += p.String()
		}
		if got.Ejection.On() || text != problem {
			t.Errorf("%s: %v, %q, want none, %q", value, got.Ejection, text, problem)
		}
	}
}
