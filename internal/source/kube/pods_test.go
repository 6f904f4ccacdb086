package kube

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func pod(name, uid string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(uid)}}
}

// static returns the object that the kubelet makes for a static pod.
func static(name, uid, kubeletUID string) *corev1.Pod {
	p := pod(name, uid)
	p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: kubeletUID, "other": "x"}
	return p
}

// selection records the selected pods.
type selection struct {
	mu   sync.Mutex
	uids []string
}

func (s *selection) set(uids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uids = uids
}

func (s *selection) waitFor(t *testing.T, want ...string) {
	t.Helper()
	waitFor(t, func() string {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.uids == nil {
			return "no pods are selected yet"
		}
		if diff := cmp.Diff(want, s.uids); diff != "" {
			return fmt.Sprintf("the pods differ (-want +got):\n%s", diff)
		}
		return ""
	})
}

// The UIDs of the selected pods of this node follow the API server; Services do not wait for them.
func TestSelectedPods(t *testing.T) {
	for name, protobuf := range map[string]bool{"JSON": false, "protobuf": true} {
		t.Run(name, func(t *testing.T) {
			api := newAPIServer(t)
			api.protobuf = protobuf
			api.set(podsPath, pod("b", "uid-b"))
			api.set(podsPath, static("a", "uid-a", "kubelet-a"))
			api.setStatus(podsPath, http.StatusForbidden)
			var selected selection
			f := startOptions(t, Options{Client: api.client(), NodeName: "n1", Pods: PodSelection{Labels: "mesh=on", Changed: selected.set}})
			f.ready()

			api.setStatus(podsPath, 0)
			selected.waitFor(t, "kubelet-a", "uid-b")
			if want := podsPath + " mesh=on spec.nodeName=n1"; !slices.Contains(api.requestLog(), want) {
				t.Errorf("no request %q in %q", want, api.requestLog())
			}
			api.set(podsPath, pod("c", "uid-c"))
			selected.waitFor(t, "kubelet-a", "uid-b", "uid-c")
			api.remove(podsPath, "default/b")
			selected.waitFor(t, "kubelet-a", "uid-c")
		})
	}
}

// Without a selection no Pods are requested.
func TestNoPods(t *testing.T) {
	api := newAPIServer(t)
	f := start(t, api)
	f.ready()
	f.stop()
	if n := slices.IndexFunc(api.requestLog(), func(r string) bool { return strings.HasPrefix(r, podsPath) }); n >= 0 {
		t.Errorf("Pods are requested: %q", api.requestLog())
	}
}
