package nftables

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

const testMark = 0x4000

var bothTables = []nft.Table{{Family: nft.IP4, Name: TableName}, {Family: nft.IP6, Name: TableName}}

// realKernel returns a connection to nf_tables in a new network namespace.
func realKernel(t testing.TB) (conn *nft.Conn, netns int) {
	t.Helper()
	netns = kerneltest.Namespace(t)
	conn, err := nft.Open(nft.Options{NetNS: netns})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return conn, netns
}

// runNft runs nft in a namespace, and returns its output.
func runNft(t testing.TB, netns int, stdin string, args ...string) (string, error) {
	t.Helper()
	var out strings.Builder
	var failed error
	kerneltest.Do(t, netns, func() error {
		cmd := exec.Command("nft", args...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &out
		failed = cmd.Run()
		return nil
	})
	return out.String(), failed
}

// newPlane returns a plane of both families, or of the given ones.
func newPlane(kernel Kernel, families ...route.Family) *Plane {
	if len(families) == 0 {
		families = route.Families()
	}
	return New(kernel, Options{Families: families, Mark: testMark})
}

// load writes a change with a new plane, which compares it with the present state of the kernel.
func load(t testing.TB, kernel Kernel, change route.Change, families ...route.Family) *Plane {
	t.Helper()
	p := newPlane(kernel, families...)
	planetest.Load(t, p, change)
	return p
}

// checkSettled verifies that a new plane finds nothing to write.
func checkSettled(t testing.TB, kernel Kernel, table *route.Table, families ...route.Family) {
	t.Helper()
	planetest.Settled(t, newPlane(kernel, families...), table)
}
