package nftables

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
	"github.com/sluice-proxy/sluice/internal/kernel/nft"
	"github.com/sluice-proxy/sluice/internal/plane/planetest"
	"github.com/sluice-proxy/sluice/internal/route"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

const testMark = 0x4000

var bothTables = []nft.Table{{Family: nft.IP4, Name: TableName}, {Family: nft.IP6, Name: TableName}}

// realKernel returns a door to nf_tables in a fresh network namespace.
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

// runNft runs the nft program in a namespace, as an operator would, and
// returns what it printed.
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

// newPlane makes a plane of both families, or of those given.
func newPlane(kernel Kernel, families ...route.Family) *Plane {
	if len(families) == 0 {
		families = planetest.Families()
	}
	return New(kernel, Options{Families: families, Mark: testMark})
}

// load makes the kernel do what the change says, from whatever it does now.
func load(t testing.TB, kernel Kernel, change route.Change, families ...route.Family) *Plane {
	t.Helper()
	p := newPlane(kernel, families...)
	planetest.Load(t, p, change)
	return p
}

// settled wants a plane that looks at the kernel for the first time to find
// nothing to do.
func settled(t testing.TB, kernel Kernel, table *route.Table, families ...route.Family) {
	t.Helper()
	planetest.Settled(t, newPlane(kernel, families...), table)
}
