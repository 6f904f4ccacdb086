package convert

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/internal/route"
)

// The annotation names a scheduler. Text that no kernel can have as a name is a problem, and is ignored.
func TestScheduler(t *testing.T) {
	for value, want := range map[string]string{
		"": "", "wlc": "wlc", "p2c": "p2c", "maglev": "maglev", "twos": "twos", "WLC": "", "wrr,rr": "",
		"../x": "", strings.Repeat("a", 16): "",
	} {
		got, problems := (&Converter{}).Service(scheduled(value))
		if got.Scheduler != want || (len(problems) > 0) != (value != want) {
			t.Errorf("%q: scheduler %q, problems %v, want %q", value, got.Scheduler, problems, want)
		}
	}
}

// A name that no mode has is a problem, and so is one that this mode does not have, which answers name all the same. In
// mode ipvs an unknown one is passed on as well: the kernel may have it.
func TestSchedulerOfAMode(t *testing.T) {
	const unknown = "expected rr, wrr, lc, wlc, sh, mh, maglev, p2c, twos, sed, nq, dh, lblc, lblcr, fo or ovf"
	iptables := Converter{Mode: "iptables", Lacking: []route.Method{route.Hash, route.Least}}
	const lacking = "mode iptables does not have this scheduler and chooses endpoints at random"
	for _, c := range []struct {
		in                 Converter
		name, want, reason string
	}{
		{Converter{}, "unheard", "", "unknown scheduler, ignored: " + unknown},
		{
			Converter{AnyScheduler: true},
			"unheard", "unheard",
			"unknown scheduler, ignored unless the kernel has it: " + unknown,
		},
		{iptables, "mh", "mh", lacking},
		{iptables, "nq", "nq", lacking},
		{iptables, "wrr", "wrr", ""},
		{iptables, "fo", "fo", ""},
	} {
		got, problems := c.in.Service(scheduled(c.name))
		want := []route.Problem{{
			Object: "Service default/web", Field: "metadata.annotations[sluice-proxy.github.io/scheduler]",
			Value: c.name, Reason: c.reason,
		}}
		if c.reason == "" {
			want = nil
		}
		if diff := cmp.Diff(want, problems); diff != "" || got.Scheduler != c.want {
			t.Errorf("%q: scheduler %q, problems (-want +got):\n%s", c.name, got.Scheduler, diff)
		}
	}
}

func scheduled(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web", Annotations: map[string]string{AnnotationScheduler: name},
		},
		Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1"},
	}
}

// The annotation is the time of a slow start. Text that is no duration, and a time that is too long, are problems,
// and are ignored.
func TestSlowStart(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"": 0, "30s": 30 * time.Second, "1h": time.Hour, "0s": 0, "61m": -1, "-1s": -1, "30": -1, "soon": -1,
	} {
		svc := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: "web", Annotations: map[string]string{AnnotationSlowStart: value},
			},
			Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1"},
		}
		got, problems := (&Converter{}).Service(svc)
		if got.SlowStart != max(want, 0) || (len(problems) > 0) != (want < 0) {
			t.Errorf("%q: %s, problems %v, want %s", value, got.SlowStart, problems, want)
		}
	}
}
