package bpf

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
)

// errFault is the error of operations that fail on purpose.
var errFault = errors.New("injected")

// failAt returns a Fault that makes the n-th of some operations fail, counted from 1, and all of them afterwards, as
// if the process had been killed.
func failAt(o Operation, n int) func(Operation) error {
	return func(is Operation) error {
		if is == o {
			n--
		}
		if n <= 0 {
			return errFault
		}
		return nil
	}
}

// reads returns the version of the programs that Read returns.
func (n *node) reads() string {
	n.t.Helper()
	state, err := n.conn.Read(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	return state[Key{Table: Programs}]
}

// balances verifies that connections go to the backend and follow a change of the slots: the programs read the maps
// of the Conn.
func (n *node) balances(backends ...string) {
	n.t.Helper()
	for _, b := range backends {
		n.write(service(vip, 6, OfNode, b)...)
		n.run(func() error {
			by, _, err := ask(vip)
			if err == nil && by != b {
				err = fmt.Errorf("%s answers, want %s", by, b)
			}
			return err
		})
	}
	if got := n.reads(); got != n.conn.Version() {
		n.t.Errorf("the programs are %q, want %q", got, n.conn.Version())
	}
}

// twoBackends returns a node with a Service, and its backends.
func twoBackends(t *testing.T) (n *node, backends []string) {
	n = newNode(t)
	backends = []string{"127.0.0.1:8080", "127.0.0.2:8080"}
	for _, at := range backends {
		serve(t, n.opt.NetNS, at)
	}
	n.balances(backends...)
	return n, backends
}

// many returns steps that make the map of slots larger.
func many() (steps []Step) {
	for i := range firstSize + 1 {
		steps = append(steps, Step{Entry: Slot{Pool{9}, i, netip.MustParseAddrPort("10.1.1.1:80"), 1}.Entry()})
	}
	return steps
}

// Programs that do not use the pinned maps are replaced: otherwise they would not see what Write changes.
func TestOtherMaps(t *testing.T) {
	for name, spoil := range map[string]func(*node) error{
		"another program has removed the maps": func(n *node) error {
			return os.RemoveAll(filepath.Dir(n.conn.mapPath(Slots.String())))
		},
		"another program has removed one map": func(n *node) error { return os.Remove(n.conn.mapPath("udp_sockets")) },
		"another program has removed the pins of programs": func(n *node) error {
			pins, err := filepath.Glob(n.conn.programPath("*"))
			for _, p := range pins {
				err = errors.Join(err, os.Remove(p))
			}
			if len(pins) != len(n.conn.points()) {
				err = errors.Join(err, fmt.Errorf("%d programs are pinned, want %d", len(pins), len(n.conn.points())))
			}
			return err
		},
		"killed before a larger map is pinned": func(n *node) error {
			return n.fails(failAt(Pin, 1), many()...) // the map is pinned before the programs
		},
		"killed while programs with a larger map are attached": func(n *node) error {
			return n.fails(failAt(Attach, len(n.conn.points())-2), many()...)
		},
		"killed while programs are attached again": func(n *node) error {
			n.conn = n.reopen(func(o *Options) { o.Exempting = ExemptRoot })
			return n.fails(failAt(Attach, len(n.conn.points())/2), Step{
				Entry: Entry{Key{Table: Programs}, n.conn.Version()},
			})
		},
	} {
		for _, restarts := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, restarts %t", name, restarts), func(t *testing.T) {
				n, backends := twoBackends(t)
				if err := spoil(n); err != nil {
					t.Fatal(err)
				}
				if restarts {
					n.conn = n.reopen(func(o *Options) { o.Fault = nil })
				}
				n.conn.opt.Fault = nil
				if got := n.reads(); got != other {
					t.Errorf("the programs are %q, want %q", got, other)
				}
				n.balances(backends...)
				n.conn = n.reopen(func(*Options) {})
				n.balances(backends...)
			})
		}
	}
}

// fails writes with a fault, and returns an error unless the write fails with errFault.
func (n *node) fails(fault func(Operation) error, steps ...Step) error {
	n.conn.opt.Fault = fault
	if err := n.conn.Write(n.t.Context(), steps); !errors.Is(err, errFault) {
		return errors.Join(errors.New("the write does not fail as it should"), err)
	}
	return nil
}

// While maps of a new version are filled, and grow, the programs of the earlier version stay: new programs would miss
// entries.
func TestGrowthBeforeAttachment(t *testing.T) {
	n, backends := twoBackends(t)
	if err := os.RemoveAll(filepath.Dir(n.conn.mapPath(Slots.String()))); err != nil {
		t.Fatal(err)
	}
	n.conn = n.reopen(func(*Options) {})
	if err := n.conn.Write(t.Context(), many()); err != nil {
		t.Fatal(err)
	}
	n.run(func() error {
		by, _, err := ask(vip)
		if err == nil && by != backends[1] {
			err = fmt.Errorf("%s answers, want %s", by, backends[1])
		}
		return err
	})
	n.balances(backends...)
}
