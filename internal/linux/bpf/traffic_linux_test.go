package bpf

import (
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sluice-proxy/sluice/test/lab"
)

// keep calls a function in a loop until the test calls end, and then 20 times more. It fails the test if any call
// fails. The first call ends before keep returns.
func (n *node) keep(call func() error) (end func()) {
	inside := lab.Inside(n.t, n.opt.Cgroup, n.opt.NetNS)
	if err := inside(call); err != nil {
		n.t.Fatal(err)
	}
	var stopped atomic.Bool
	var traffic sync.WaitGroup
	traffic.Go(func() {
		for i, more := 0, 20; more > 0; i++ {
			if stopped.Load() {
				more--
			}
			if err := inside(call); err != nil {
				n.t.Errorf("call %d: %v", i, err)
				return
			}
		}
	})
	return func() {
		stopped.Store(true)
		traffic.Wait()
	}
}

// A version whose maps have other fields has them in another folder. While it fills them, and replaces the programs
// of the version before, no connection fails, even if it does not succeed at first. Connections that are open stay.
func TestVersionWithOtherMaps(t *testing.T) {
	n := newNode(t)
	serve(t, n.opt.NetNS, "127.0.0.1:8080")
	serve(t, n.opt.NetNS, "127.0.0.2:8080")
	earlier := service(vip, 6, OfNode, "127.0.0.1:8080")
	n.conn.mapsDir = mapsPrefix + "earlier"
	n.write(earlier...)
	var open net.Conn
	n.run(func() (err error) { open, err = net.Dial("tcp", vip); return err })
	t.Cleanup(func() { _ = open.Close() }) // all is read
	end := n.keep(func() error { _, _, err := ask(vip); return err })
	for at := range len(n.conn.points()) + 1 {
		n.conn = n.reopen(func(o *Options) { o.Fault = failAt(Attach, at+1) })
		steps := many() // more than the first size
		for _, e := range append(slices.Clone(earlier), Entry{Key{Table: Programs}, n.conn.Version()}) {
			steps = append(steps, Step{Entry: e})
		}
		err := n.conn.Write(t.Context(), steps)
		if last := at == len(n.conn.points()); last != (err == nil) {
			t.Errorf("with a failure at program %d: %v", at, err)
		}
	}
	end()
	n.conn.opt.Fault = nil
	n.balances("127.0.0.2:8080", "127.0.0.1:8080")
	if _, err := answerer(open); err != nil {
		t.Errorf("the connection from before: %v", err)
	}
	if dirs, err := os.ReadDir(n.opt.Dir); err != nil || len(dirs) != 2 {
		t.Errorf("left are %v, %v, want the links and the maps of this version", dirs, err)
	}
}

// differs returns an error unless two values are equal.
func differs[T comparable](what string, is, want T) error {
	if is == want {
		return nil
	}
	return fmt.Errorf("%s is %v, want %v", what, is, want)
}
