//go:build linux

package apiserver

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
	"github.com/sluice-proxy/sluice/test/lab"
)

// meshLabel is the label of Istio by which the proxy of a node, ztunnel, gets the connections of a pod. It needs the addresses of Services in them.
const meshLabel = "istio.io/dataplane-mode"

// testExemptPods verifies that processes of pods with a label are not balanced at their sockets, from the moment at which the pod has it.
func testExemptPods(w *testEnv) {
	kerneltest.NeedPrograms(w.T)
	svc := w.createService()
	w.setEndpoints("web", w.pods[0])
	to := netip.AddrPortFrom(netip.MustParseAddr(svc.Spec.ClusterIP), 80)
	mesh, plain := w.createPod("mesh", "ambient"), w.createPod("plain", "none")
	cgroup := lab.Cgroup(w)
	process := func(pod *corev1.Pod) func(func() error) error {
		return lab.Inside(w, lab.Below(w, cgroup, "kubepods/burstable/pod"+string(pod.UID)+"/container"), w.lab.NodeA.NetNSFD())
	}
	inMesh, inPlain := process(mesh), process(plain)
	p := w.run("--proxy-mode=ebpf", "--exempt-pods="+meshLabel+"=ambient", "--bpf-dir="+filepath.Join(lab.BPFFS(w), "sluice"), "--cgroup-root="+cgroup)
	_, err := p.First(w.Context())
	w.must(err)
	check := func(name string, run func(func() error) error, want bool) {
		w.Helper()
		w.eventually(func() error {
			exempt, err := w.lab.NodeA.PeerInKernel(run, to)
			if err == nil && exempt != want {
				err = fmt.Errorf("connections of the pod %s are translated packet by packet: %t, want %t", name, exempt, want)
			}
			return err
		})
	}
	check("mesh", inMesh, true)
	check("plain", inPlain, false)

	plain.Labels[meshLabel] = "ambient"
	_, err = w.Client.CoreV1().Pods(w.ns).Update(w.Context(), plain, metav1.UpdateOptions{})
	w.must(err)
	check("plain, with the label", inPlain, true)
	w.must(w.Client.CoreV1().Pods(w.ns).Delete(w.Context(), mesh.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	check("mesh, deleted", inMesh, false)
}

// createPod creates a Pod of node A with a label.
func (w *testEnv) createPod(name, mode string) *corev1.Pod {
	w.Helper()
	pod, err := w.Client.CoreV1().Pods(w.ns).Create(w.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{meshLabel: mode}},
		Spec:       corev1.PodSpec{NodeName: w.lab.NodeA.Name(), Containers: []corev1.Container{{Name: "app", Image: "app"}}},
	}, metav1.CreateOptions{})
	w.must(err)
	w.Cleanup(func() {
		_ = w.Client.CoreV1().Pods(w.ns).Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}) // it may be gone
	})
	return pod
}
