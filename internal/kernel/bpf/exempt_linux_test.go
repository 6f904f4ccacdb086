package bpf

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/lab"
)

// A process in an exempt cgroup, or below one, is not balanced, while one beside it is.
func TestExempt(t *testing.T) {
	n := newNode(t)
	n.conn = n.reopen(func(o *Options) { o.Exempting = true })
	serve(t, n.opt.NetNS, "127.0.0.1:8080")
	inside := map[string]func(func() error) error{}
	ids := map[string]uint64{}
	for _, name := range []string{"a", "a/below", "b"} {
		dir := filepath.Join(n.opt.Cgroup, name)
		err := os.Mkdir(dir, 0o755)
		if err = errors.Join(err, os.WriteFile(filepath.Join(dir, "cgroup.type"), []byte("threaded"), 0)); err != nil { // tests enter it by thread
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Remove(dir) }) // the cgroup of the test is removed with what is in it
		var stat unix.Stat_t
		if err := unix.Stat(dir, &stat); err != nil {
			t.Fatal(err)
		}
		inside[name], ids[name] = lab.Inside(t, dir, n.opt.NetNS), stat.Ino
	}
	want := func(balanced map[string]bool) {
		t.Helper()
		for name, run := range inside {
			err := run(func() error { _, _, err := ask(vip); return err })
			if (err == nil) != balanced[name] {
				t.Errorf("in %s: balanced %t, want %t: %v", name, err == nil, balanced[name], err)
			}
		}
	}
	if err := n.conn.Exempt(map[uint64]bool{ids["a"]: true}); err != nil {
		t.Fatal(err)
	}
	n.write(service(vip, 6, OfNode, "127.0.0.1:8080")...)
	want(map[string]bool{"b": true})
	if err := n.conn.Exempt(map[uint64]bool{ids["b"]: true}); err != nil {
		t.Fatal(err)
	}
	want(map[string]bool{})
	if err := n.conn.ExemptOnly(map[uint64]bool{ids["a/below"]: true, ids["b"]: true}); err != nil {
		t.Fatal(err)
	}
	want(map[string]bool{"a": true})
	n.conn = n.reopen(func(o *Options) { o.Exempting = false }) // as a run without exemptions
	n.write()
	want(map[string]bool{"a": true, "a/below": true, "b": true})
}
