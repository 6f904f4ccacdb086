package bpf

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/lab"
)

// Processes in an exempt cgroup, or below one, are not balanced; others are.
func TestExemptCgroups(t *testing.T) {
	n := newNode(t)
	n.conn = n.reopen(func(o *Options) { o.Exempting = ExemptAny })
	serve(t, n.opt.NetNS, "127.0.0.1:8080")
	inside, ids := map[string]func(func() error) error{}, map[string]uint64{}
	for _, name := range []string{"a", "a/below", "b"} {
		dir := lab.Below(t, n.opt.Cgroup, name)
		id, err := CgroupID(dir)
		if err != nil {
			t.Fatal(err)
		}
		inside[name], ids[name] = lab.Inside(t, dir, n.opt.NetNS), id
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
	exempt := func(names ...string) {
		t.Helper()
		set := map[uint64]bool{}
		for _, name := range names {
			set[ids[name]] = true
		}
		if err := n.conn.Exempt(set); err != nil {
			t.Fatal(err)
		}
	}
	exempt("a")
	if _, err := os.Stat(n.opt.Dir); !os.IsNotExist(err) {
		t.Errorf("something is pinned before the first write: %v", err)
	}
	n.write(service(vip, 6, OfNode, "127.0.0.1:8080")...)
	want(map[string]bool{"b": true})
	exempt("a", "b")
	want(map[string]bool{})
	exempt("a/below", "b")
	want(map[string]bool{"a": true})

	n.conn = n.reopen(func(*Options) {}) // as after a restart
	n.write()
	want(map[string]bool{"a": true})                        // until Exempt is called
	n.conn = n.reopen(func(o *Options) { o.Exempting = 0 }) // as with another configuration
	n.write()
	want(map[string]bool{"a": true, "a/below": true, "b": true})
}

// A process in the root of all cgroups that connects a socket of a cgroup below, as threads of the kernel do, is exempt
// if the option says so; a process in that cgroup is balanced all the same.
func TestExemptRoot(t *testing.T) {
	n := newNode(t)
	root, err := FindRoot()
	if err != nil {
		t.Fatal(err)
	}
	serve(t, n.opt.NetNS, "127.0.0.1:8080")
	for exempting, balanced := range map[Exempting]bool{
		0: true, ExemptAny: true, ExemptRoot: false, ExemptAny | ExemptRoot: false,
	} {
		n.conn = n.reopen(func(o *Options) { o.Exempting = exempting })
		n.write(service(vip, 6, OfNode, "127.0.0.1:8080")...)
		if err := n.connectFrom(root); (err == nil) != balanced {
			t.Errorf("%d: balanced %t in the root, want %t: %v", exempting, err == nil, balanced, err)
		}
		n.run(func() error { _, _, err := ask(vip); return err })
	}
}

// connectInherited is the argument with which this program connects a socket that it inherits.
const connectInherited = "connect-inherited"

// connectFrom opens a socket in the cgroup of the node, and lets a process in another cgroup connect it.
func (n *node) connectFrom(cgroup string) error {
	var socket *os.File
	n.run(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		socket = os.NewFile(uintptr(fd), "socket")
		return err
	})
	defer func() { _ = socket.Close() }() // nothing was written to it
	cmd := exec.CommandContext(n.t.Context(), "/proc/self/exe", connectInherited, vip,
		filepath.Join(cgroup, "cgroup.procs"))
	cmd.ExtraFiles = []*os.File{socket}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// connectAsChild connects descriptor 3 after it has entered a cgroup.
func connectAsChild(to, procs string) error {
	if err := os.WriteFile(procs, []byte("0"), 0); err != nil {
		return err
	}
	at := netip.MustParseAddrPort(to)
	return unix.Connect(3, &unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())})
}
