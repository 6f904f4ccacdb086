package app

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// A daemon starts even if some files in its folder cannot be read. It programs the Services
// in the others, and those in an unreadable file as soon as it can be read.
func TestStartsWithUnreadableManifests(t *testing.T) {
	path := manifests(t, webService)
	dir := filepath.Dir(path)
	broken := filepath.Join(dir, "broken.yaml")
	for name, err := range map[string]error{
		"FIFO":     syscall.Mkfifo(broken, 0o600),
		"dangling": os.Symlink("nowhere", filepath.Join(dir, "dangling.yaml")),
		"memory":   os.Symlink("/proc/self/mem", filepath.Join(dir, "memory.yaml")),
	} {
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	o := options(t, "--manifests="+dir)
	o.NetNS = kerneltest.Namespace(t)
	r := run(t, o)
	if first := r.sync(); !first.Full() || first.Services != 1 {
		t.Errorf("the first write is %+v, want a comparison with one Service", first)
	}
	if err := os.Remove(broken); err != nil {
		t.Fatal(err)
	}
	other := strings.NewReplacer("name: web", "name: other", "service-name: web", "service-name: other", "10.96.0.80",
		"10.96.0.81")
	if err := os.WriteFile(broken, []byte(other.Replace(webService)), 0o600); err != nil {
		t.Fatal(err)
	}
	if next := r.sync(); next.Services != 1 || next.Steps == 0 {
		t.Errorf("the file that can be read now leads to %+v, want a write of one Service", next)
	}
	if err := r.stop(); err != nil {
		t.Errorf("ended with %v", err)
	}
}
