//go:build linux

package lab

import "testing"

func TestMain(m *testing.M) { Main(m) }

// testLab is a lab with a pod on each node.
type testLab struct {
	*Lab
	near, far *Host
}

func newTestLab(t *testing.T, o Options) testLab {
	t.Helper()
	l := New(t, o)
	return testLab{
		Lab:  l,
		near: l.Pod(l.NodeA, "10.180.0.1", "fd00:10:180::1"),
		far:  l.Pod(l.NodeB, "10.180.1.1", "fd00:10:180:1::1"),
	}
}
