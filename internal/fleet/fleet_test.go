package fleet

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/internal/health"
)

// Of several pods of a node the one that runs is asked; pods without a node stay.
func TestOnePerNode(t *testing.T) {
	got := ""
	for _, p := range onePerNode([]Pod{
		{Node: "b", Name: "new"},
		{Node: "a", Name: "one"},
		{Name: "x", Trouble: "pending"},
		{Name: "y", Trouble: "pending"},
		{Node: "b", Name: "before", Trouble: "the pod is being deleted"},
		{Node: "c", Name: "failed", Trouble: "failed"},
	}) {
		got += p.Node + "/" + p.Name + " "
	}
	if want := "/x /y a/one b/new c/failed "; got != want {
		t.Errorf("the pods are %q, want %q", got, want)
	}
}

// A pod has a reason if no command can run in it.
func TestTrouble(t *testing.T) {
	waits := []corev1.ContainerStatus{
		{Name: "init", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "Other"}}},
		{Name: "proxy", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}},
	}
	deleted := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	deleted.DeletionTimestamp = &metav1.Time{}
	for want, p := range map[string]*corev1.Pod{
		"": {Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: waits[:1]}},
		"the container waits: CrashLoopBackOff": {
			Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: waits},
		},
		"the pod is pending: CrashLoopBackOff": {
			Status: corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: waits},
		},
		"the pod is failed: Evicted":            {Status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"}},
		"the pod is pending: no container runs": {Status: corev1.PodStatus{Phase: corev1.PodPending}},
		"the pod is being deleted":              deleted,
	} {
		if got := trouble(p, "proxy"); got != want {
			t.Errorf("the trouble is %q, want %q", got, want)
		}
	}
}

// Commands run in the container that kubectl takes, by the path with which it was started.
func TestContainer(t *testing.T) {
	list := []corev1.Container{
		{Name: "sidecar", Command: []string{"/bin/sidecar"}},
		{Name: "proxy", Command: []string{"/opt/sluice", "--config=x"}},
	}
	for annotation, want := range map[string]string{"": "sidecar sluice", "proxy": "proxy /opt/sluice"} {
		var from corev1.Pod
		from.Spec.Containers, from.Annotations = list, map[string]string{defaultContainer: annotation}
		if p := newPod(&from); p.container+" "+p.program != want {
			t.Errorf("%q: %s %s, want %s", annotation, p.container, p.program, want)
		}
	}
}

// Of equally many the smallest value is the usual one, so that two calls agree.
func TestOutliersOfEqualHalves(t *testing.T) {
	var all []Answer
	for i, version := range []string{"v2", "v1", "v2", "v1"} {
		s := &Status{}
		s.Version, s.Health.State = version, health.Healthy
		all = append(all, Answer{Node: fmt.Sprint(i), Status: s})
	}
	got := ""
	for _, a := range arrange(all) {
		got += a.Node + strings.Join(a.Differs, ",") + " "
	}
	if want := "0most nodes run v1 2most nodes run v1 1 3 "; got != want {
		t.Errorf("the order is %q, want %q", got, want)
	}
}

// An answer without an end takes no more memory than the limit.
func TestLimitedAnswer(t *testing.T) {
	var l limited
	part := make([]byte, maxAnswer/2)
	for range 2 {
		if _, err := l.Write(part); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Write([]byte{1}); err == nil || !l.full || l.Len() != maxAnswer {
		t.Errorf("%v, %d bytes, want an error and %d", err, l.Len(), maxAnswer)
	}
}
