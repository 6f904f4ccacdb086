package bpf

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// The kernel and the fake behave alike.
func TestTables(t *testing.T) {
	n := newNode(t)
	for name, k := range map[string]interface {
		Read(context.Context) (State, error)
		Write(context.Context, []Step) error
		Remove(context.Context) ([]string, error)
		Version() string
	}{"kernel": n.conn, "fake": NewFake()} {
		t.Run(name, func(t *testing.T) {
			want := State{}
			var steps []Step
			add := func(e Entry) {
				steps = append(steps, Step{Entry: e})
				want[e.Key] = e.Value
			}
			for i := range 3 * firstSize {
				for _, e := range service(fmt.Sprintf("10.96.%d.%d:%d", i/256, i%256, 80), 6, OfNode) {
					add(e)
				}
				add(Slot{Pool{9}, i, netip.MustParseAddrPort("10.1.1.1:80"), 1}.Entry())
				add(NodeAddr(netip.AddrFrom4([4]byte{10, 2, byte(i / 256), byte(i)})))
			}
			add(Entry{Key{Table: Programs}, k.Version()})
			if err := k.Write(t.Context(), steps); err != nil {
				t.Fatal(err)
			}
			got, err := k.Read(t.Context())
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("%v; -want +got:\n%.2000s", err, diff)
			}
			remove := []Step{{Entry: steps[0].Entry, Remove: true}}
			if err := k.Write(t.Context(), remove); err != nil {
				t.Error(err)
			}
			if err := k.Write(t.Context(), remove); !errors.Is(err, ErrNotFound) {
				t.Errorf("the second removal returns %v, want %v", err, ErrNotFound)
			}
			if err := k.Write(t.Context(), []Step{{Entry: Entry{Key: Key{Slots, "short"}}}}); err == nil {
				t.Error("accepts a short key")
			}
			if removed, err := k.Remove(t.Context()); err != nil || len(removed) == 0 {
				t.Errorf("removed %v, %v", removed, err)
			}
			if got, err := k.Read(t.Context()); err != nil || len(got) != 0 {
				t.Errorf("after removal: %d entries, %v", len(got), err)
			}
			if removed, err := k.Remove(t.Context()); err != nil || len(removed) != 0 {
				t.Errorf("removed again: %v, %v", removed, err)
			}
		})
	}
}

// While maps grow and programs are replaced, every connection is balanced. Another process adopts them.
func TestNoWindow(t *testing.T) {
	n := newNode(t)
	serve(t, n.opt.NetNS, "127.0.0.1:8080")
	n.write(service("10.96.0.1:80", 6, OfNode, "127.0.0.1:8080")...)
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for asked := 0; ; asked++ {
			select {
			case <-stop:
				if asked < 20 {
					ended <- fmt.Errorf("only %d connections", asked)
				}
				ended <- nil
				return
			default:
			}
			if err := n.inside(func() error { _, _, err := ask("10.96.0.1:80"); return err }); err != nil {
				ended <- err
				return
			}
		}
	}()
	for round := range 4 {
		var list []Entry
		for i := range 2000 {
			list = append(list, service(fmt.Sprintf("10.97.%d.%d:80", 8*round+i/256, i%256), 6, OfNode, "127.0.0.1:8080")...)
		}
		n.write(list...)
		if err := n.conn.Close(); err != nil {
			t.Error(err)
		}
		n.conn = n.open() // as another run of the program
		n.conn.version = fmt.Sprint("v", round)
		n.write()
	}
	close(stop)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// The next write of the programs restores pins that another program has removed, and removes pins of an earlier
// version.
func TestPins(t *testing.T) {
	n := newNode(t)
	serve(t, n.opt.NetNS, "127.0.0.1:8080")
	n.write(service("10.96.0.1:80", 6, OfNode, "127.0.0.1:8080")...)
	if err := os.RemoveAll(n.opt.Dir); err != nil {
		t.Fatal(err)
	}
	state, err := n.conn.Read(t.Context())
	if _, attached := state[Key{Table: Programs}]; attached || err != nil {
		t.Errorf("programs are there: %v, %v", state, err)
	}
	old := filepath.Join(n.opt.Dir, "maps-0")
	if err := os.MkdirAll(old, 0o700); err != nil {
		t.Fatal(err)
	}
	n.write()
	if _, err := os.Stat(old); !os.IsNotExist(err) {
		t.Errorf("%s is there: %v", old, err)
	}
	n.conn = n.open()
	state, err = n.conn.Read(t.Context())
	if len(state) != 4 || state[Key{Table: Programs}] != n.conn.Version() || err != nil {
		t.Errorf("another process finds %v, %v", state, err)
	}
	n.run(func() error { _, _, err := ask("10.96.0.1:80"); return err })
	if err := n.conn.Effective(); err != nil {
		t.Error(err)
	}
}

// The programs of a version with other maps stay until the maps of this version are filled. Their sockets keep their
// backends, but are not known any more.
func TestUpgrade(t *testing.T) {
	n := newNode(t)
	serve(t, n.opt.NetNS, "127.0.0.1:53")
	n.conn.mapsDir, n.conn.version = mapsPrefix+"earlier", "earlier"
	n.write(service(dns4, 17, OfNode, "127.0.0.1:53")...)
	var kept *socket
	n.run(func() (err error) {
		if kept, err = openSocket(unix.AF_INET); err != nil {
			return err
		}
		return kept.connect(dns4)
	})
	defer kept.close()
	n.conn = n.open() // as another run of the program
	for _, e := range service(dns4, 17, OfNode, "127.0.0.1:53") {
		if err := n.conn.Write(t.Context(), []Step{{Entry: e}}); err != nil {
			t.Fatal(err)
		}
	}
	if got := n.reads(); got != other {
		t.Errorf("while the maps are filled the programs are %q, want %q", got, other)
	}
	n.run(func() error { _, err := kept.want("", dns4); return err })
	n.write()
	if got := n.reads(); got != n.conn.Version() {
		t.Errorf("afterwards the programs are %q, want %q", got, n.conn.Version())
	}
	if _, err := os.Stat(filepath.Join(n.opt.Dir, mapsPrefix+"earlier")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the earlier maps are there: %v", err)
	}
	if list, err := n.conn.Sockets(); err != nil || len(list) != 0 {
		t.Errorf("knows the sockets %v, %v, want none", list, err)
	}
	n.run(func() error { _, err := kept.want("", "127.0.0.1:53"); return err })
}

// Remove deletes nothing in a folder that is not on a bpffs, nor in the working directory.
func TestRemoveKeepsOtherFolders(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "links", "precious")
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{dir, "", filepath.Join(dir, "missing")} {
		if removed, err := Remove(t.Context(), Options{Dir: d}); err != nil || len(removed) > 0 {
			t.Errorf("%q: removed %v, %v", d, removed, err)
		}
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}
