package kube

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// podUIDs keeps the UIDs of pods. The reflector's goroutine alone uses it.
type podUIDs struct {
	uids    map[cluster.Name]string
	changed func([]string)
}

// put adds a pod. The object of a static pod is a copy with a UID of its own, and has the UID of the kubelet as an annotation.
func (p *podUIDs) put(obj object) {
	uid := obj.GetAnnotations()[corev1.MirrorPodAnnotationKey]
	if uid == "" {
		uid = string(obj.GetUID())
	}
	p.uids[nameOf(obj)] = uid
}

func (p *podUIDs) drop(name cluster.Name) { delete(p.uids, name) }

func (p *podUIDs) names() []cluster.Name { return slices.Collect(maps.Keys(p.uids)) }

func (p *podUIDs) flush() { p.changed(slices.Sorted(maps.Values(p.uids))) }
