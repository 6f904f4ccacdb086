//go:build linux

package main

import (
	"os/exec"
	"testing"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// The programs write the same as Sluice: measurePrograms compares the kernel with it.
func TestMeasurePrograms(t *testing.T) {
	kerneltest.NeedIPVS(t)
	o := options{plane: ipvsPlane, child: 100, changes: 10, dir: t.TempDir()}
	c, err := measurePrograms(o)
	if err != nil {
		t.Fatal(err)
	}
	contenders := []contender{c.Sluice}
	if _, err := exec.LookPath("ipvsadm"); err == nil {
		contenders = append(contenders, c.Programs)
	}
	for _, got := range contenders {
		if len(got.Changes) != 10 || got.Cold[virtualServers] <= 0 || got.Cold[ipsets] <= 0 ||
			got.Cold[addresses] <= 0 || got.Cold[rules] <= 0 {
			t.Errorf("a measurement is missing: %+v", got)
		}
	}
}
