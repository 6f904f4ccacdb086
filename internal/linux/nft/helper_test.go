package nft

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

var tables = []Table{{IP4, "t"}, {IP6, "t"}}

// realKernel returns a Conn in a new network namespace.
func realKernel(t testing.TB) (conn *Conn, netns int) {
	t.Helper()
	netns = kerneltest.Namespace(t)
	conn, err := Open(Options{NetNS: netns})
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

// runNft runs nft in a namespace and returns its output.
func runNft(t testing.TB, netns int, args ...string) string {
	t.Helper()
	var out strings.Builder
	kerneltest.Do(t, netns, func() error {
		cmd := exec.Command("nft", args...)
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil {
			t.Errorf("nft %s: %v\n%s", strings.Join(args, " "), err, out.String())
		}
		return nil
	})
	return out.String()
}

// kernel is the common interface of Conn and Fake.
type kernel interface {
	Commit(ctx context.Context, tx *Tx) error
	Read(ctx context.Context, t Table, expected []ExpectedKeys) (*State, error)
	DeleteTables(ctx context.Context, tables ...Table) error
	Room() int
}

func commit(t testing.TB, k kernel, tx *Tx) {
	t.Helper()
	if err := k.Commit(context.Background(), tx); err != nil {
		t.Fatalf("%v\n%.2000s", err, tx)
	}
}

// commitFull commits a transaction if it has no room for another element.
func commitFull(t testing.TB, k kernel, tx *Tx) {
	t.Helper()
	if tx.Bytes()+512 > k.Room() {
		commit(t, k, tx)
		tx.Reset()
	}
}

func read(t testing.TB, k kernel, table Table) *State {
	t.Helper()
	s, err := k.Read(context.Background(), table, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// valuesOf returns the elements of a set.
func valuesOf(s SetState) []Element {
	var all []Element
	for _, e := range s.Elements.All() {
		all = append(all, e)
	}
	return all
}

// addr returns the i-th test address of a family.
func addr(f Family, i int) netip.Addr {
	if f == IP4 {
		return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
	}
	return netip.AddrFrom16([16]byte{0: 0xfd, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)})
}
