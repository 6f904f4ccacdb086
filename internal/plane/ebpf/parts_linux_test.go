package ebpf_test

import (
	"bytes"
	"context"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/lab"
)

// While the maps cannot be created, as on a bpffs that became read-only, the parts of the plane continue, so that
// rules are still written. The error of a part would end the process.
func TestPartsGoOnWithoutMaps(t *testing.T) {
	kerneltest.NeedPrograms(t)
	dir := lab.BPFFS(t)
	var log bytes.Buffer
	opened := openAt(t, config.EBPF{Dir: filepath.Join(dir, "sluice"), Cgroup: lab.Cgroup(t)}, &log)
	if err := unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
	defer cancel()
	ends := make(chan error)
	n := 0
	for _, part := range opened.Parts {
		if part.Run != nil {
			n++
			go func() { ends <- part.Run(ctx) }()
		}
	}
	for range n {
		if err := <-ends; err != nil {
			t.Errorf("a part ends: %v", err)
		}
	}
}
