//go:build linux

package direct

import (
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
