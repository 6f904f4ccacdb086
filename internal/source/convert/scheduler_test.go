package convert

import (
	"strings"
	"testing"
	"time"

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

// The annotation is the time of a slow start. Text that is no duration, and a time that is too long, are problems, and are ignored.
func TestSlowStart(t *testing.T) {
	for value, want := range map[string]time.Duration{"": 0, "30s": 30 * time.Second, "1h": time.Hour, "0s": 0, "61m": -1, "-1s": -1, "30": -1, "soon": -1} {
		svc := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Annotations: map[string]string{AnnotationSlowStart: value}},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1"},
		}
		got, problems := (&Converter{}).Service(svc)
		if got.SlowStart != max(want, 0) || (len(problems) > 0) != (want < 0) {
			t.Errorf("%q: %s, problems %v, want %s", value, got.SlowStart, problems, want)
		}
	}
}
