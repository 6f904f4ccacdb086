//go:build linux

package wine

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/sluice-proxy/sluice/internal/testing/hnstest"
)

// ServeHNS gives this Windows an HNS, which Wine lacks, until the end of the test: libraries that pass each call to a
// fake.
func (p *Prefix) ServeHNS(fake *hnstest.Fake) {
	p.t.Helper()
	l, err := new(net.ListenConfig).Listen(p.t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = l.Close() })
	go fake.Serve(l)
	system := filepath.Join(p.folder, "prefix", "drive_c", "windows", "system32")
	for _, name := range []string{"computenetwork.dll", "vmcompute.dll"} {
		library := filepath.Join(system, name)
		p.compile(library, "testdata/computenetwork.c", fmt.Sprintf("-DSERVER=%d", l.Addr().(*net.TCPAddr).Port),
			"-lws2_32", "-lole32")
		p.t.Cleanup(func() { _ = os.Remove(library) }) // the folder is removed as well
	}
}

// BuildTests builds the tests of a Go package of this module for Windows and returns the program.
func (p *Prefix) BuildTests(pkg string) string {
	p.t.Helper()
	program := filepath.Join(p.folder, filepath.Base(pkg)+".test.exe")
	cmd := exec.CommandContext(p.t.Context(), "go", "test", "-c", "-trimpath", "-o", program, pkg)
	cmd.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		p.t.Fatalf("build the tests of %s for Windows: %v\n%s", pkg, err, out)
	}
	return program
}
