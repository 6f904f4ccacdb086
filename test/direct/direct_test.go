//go:build linux

package direct

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/test/lab"
)

// Connections survive the loss of the node at which they enter, and pods see the address of the client.
func TestConnectionsSurviveANodeWithoutBackends(t *testing.T) {
	r := newRig(t)
	r.pod(0)
	r.pod(1)
	r.apply(0, 1)
	for i := range r.nodes {
		r.start(i)
	}
	r.agree("", 0, 1, 2)
	f := r.flows(100, lab.TCP, vip4)
	r.enterAt(0, 1)
	f.survive("the router leaves out node C")
	r.enterAt(1)
	f.survive("the router leaves out node A")
}

// Pods come up on a node that had none: a third of the connections now belong to it, and reach their old pods.
func TestConnectionsSurviveNewBackends(t *testing.T) {
	r := newRig(t)
	r.pod(0)
	r.pod(1)
	r.pod(2)
	r.apply(0, 1)
	for i := range r.nodes {
		r.start(i)
	}
	sum := r.agree("", 0, 1, 2)
	var all []*flows
	for _, vip := range []string{vip4, vip6} {
		all = append(all, r.flows(100, lab.TCP, vip))
	}
	r.apply(0, 1, 2)
	sum = r.agree(sum, 0, 1, 2)
	for _, f := range all {
		f.survive("pods come up on node C")
	}
	r.apply(1, 2) // node A drains its pod, whose connections stay
	r.agree(sum, 0, 1, 2)
	for _, f := range all {
		f.survive("the pod on node A drains")
	}
	r.enterAt(0)
	for _, f := range all {
		f.survive("all enter at node A")
	}
}

// UDP flows keep their backend when a node without backends is lost.
func TestUDPFlowsSurviveANodeWithoutBackends(t *testing.T) {
	r := newRig(t)
	r.pod(0)
	r.pod(1)
	r.apply(0, 1)
	for i := range r.nodes {
		r.start(i)
	}
	r.agree("", 0, 1, 2)
	var all []*flows
	for _, vip := range []string{vip4, vip6} {
		all = append(all, r.flows(50, lab.UDP, vip))
	}
	r.enterAt(0, 1)
	for _, f := range all {
		f.survive("the router leaves out node C")
	}
}

// After many changes, whatever their order, connections still reach their pods, and new ones are divided evenly.
func TestConnectionsSurviveManyChanges(t *testing.T) {
	r := newRig(t)
	for i := range 6 {
		r.pod(i % 3)
	}
	r.apply(0, 1, 2)
	for i := range r.nodes {
		r.start(i)
	}
	sum := r.agree("", 0, 1, 2)
	f := r.flows(100, lab.TCP, vip4)
	random := rand.New(rand.NewPCG(1, 2))
	have := []int{0, 1, 2, 3, 4, 5}
	for change := range 30 {
		if n := random.IntN(6); slices.Contains(have, n) && len(have) > 1 {
			have = slices.DeleteFunc(slices.Clone(have), func(m int) bool { return m == n })
		} else {
			have = append(have, n)
		}
		r.applyPods(have...)
		r.agree("", 0, 1, 2)
		_ = sum
		f.survive(fmt.Sprintf("change %d, %v", change, have))
	}
}
