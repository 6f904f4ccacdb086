//go:build linux

package lab

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestProgramsBuildLabs(t *testing.T) {
	var r Result
	err := Run(func(p T) {
		l := New(p, Options{})
		l.Pod(l.NodeA, "10.180.0.1").Serve(TCP, 80)
		r = l.Outside.Dial(TCP, netip.MustParseAddrPort("10.180.0.1:80"))
	})
	if err != nil || r.Outcome != Answered {
		t.Errorf("%v: %s", err, r)
	}
}

func TestProgramsEndInOrder(t *testing.T) {
	var got []int
	err := Run(func(p T) {
		p.Cleanup(func() { got = append(got, 1) })
		p.Cleanup(func() { got = append(got, 2) })
		p.Fatalf("failed at %d", 7)
		t.Error("continued after a failure")
	})
	if err == nil || !strings.Contains(err.Error(), "failed at 7") {
		t.Errorf("error %v", err)
	}
	if !slices.Equal(got, []int{2, 1}) {
		t.Errorf("ended in order %v", got)
	}
}
