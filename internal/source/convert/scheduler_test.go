package convert

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The annotation names a scheduler. Text that no kernel can have as a name is a problem, and
// is ignored.
func TestScheduler(t *testing.T) {
	for value, want := range map[string]string{
		"": "", "wlc": "wlc", "p2c": "p2c", "unheard": "unheard", "WLC": "", "wrr,rr": "", "../x": "", strings.Repeat("a", 16): "",
	} {
		svc := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Annotations: map[string]string{AnnotationScheduler: value}},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1"},
		}
		got, problems := (&Converter{}).Service(svc)
		if got.Scheduler != want || (len(problems) > 0) != (value != want) {
			t.Errorf("%q: scheduler %q, problems %v, want %q", value, got.Scheduler, problems, want)
		}
	}
}
