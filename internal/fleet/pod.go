package fleet

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Pod is a pod, in most cases one of Sluice.
type Pod struct {
	Namespace, Name, Node string

	Addresses []netip.Addr
	Trouble   string // why no command can run in it; empty: it runs

	container, program string // in which commands run, and the path of Sluice in it
}

// defaultContainer is the annotation that kubectl follows.
const defaultContainer = "kubectl.kubernetes.io/default-container"

func newPod(from *corev1.Pod) Pod {
	p := Pod{Namespace: from.Namespace, Name: from.Name, Node: from.Spec.NodeName, program: "sluice"}
	for _, ip := range from.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			p.Addresses = append(p.Addresses, a.Unmap())
		}
	}
	for i, c := range from.Spec.Containers {
		if i > 0 && c.Name != from.Annotations[defaultContainer] {
			continue
		}
		p.container = c.Name
		if len(c.Command) > 0 && isSluice(c.Command[0]) {
			p.program = c.Command[0]
		}
	}
	p.Trouble = trouble(from, p.container)
	return p
}

// isSluice reports whether a program of a container is Sluice. On Windows it is not on the PATH.
func isSluice(path string) bool {
	base := path[strings.LastIndexAny(path, `/\`)+1:]
	return base == "sluice" || base == "sluice.exe"
}

// trouble returns why no command can run in a container of a pod.
func trouble(p *corev1.Pod, container string) string {
	if p.DeletionTimestamp != nil {
		return "the pod is being deleted"
	}
	waits := ""
	for _, s := range p.Status.ContainerStatuses {
		if s.Name == container && s.State.Waiting != nil {
			waits = s.State.Waiting.Reason
		}
	}
	if p.Status.Phase != corev1.PodRunning {
		waits = cmp.Or(waits, p.Status.Reason, "no container runs")
		return "the pod is " + strings.ToLower(string(p.Status.Phase)) + ": " + waits
	}
	if waits != "" {
		return "the container waits: " + waits
	}
	return ""
}

// onePerNode returns a pod for each node, one that runs if there is one: in a roll-out the previous one may still end.
// Pods without a node stay.
func onePerNode(all []Pod) []Pod {
	slices.SortFunc(all, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(len(a.Trouble), len(b.Trouble)), cmp.Compare(a.Name, b.Name))
	})
	return slices.CompactFunc(all, func(a, b Pod) bool { return a.Node == b.Node && a.Node != "" })
}
