package forward

import (
	"net"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
)

// openFiles returns how many file descriptors the process has.
func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// An Engine that cannot be made, one that does not run, and a socket that cannot be adopted leave no file
// descriptors open.
func TestNothingLeaks(t *testing.T) {
	ns := kerneltest.Namespace(t)
	if _, err := os.Open("/dev/null/none"); err == nil { // the poller of package os is open from now on
		t.Fatal("opened")
	}
	e, err := New(Options{NetNS: ns})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Discard(); err != nil {
		t.Fatal(err)
	}
	before := openFiles(t)
	for name, leave := range map[string]func(t *testing.T){
		"half": func(t *testing.T) {
			lowFiles(t, 2)
			if _, err := New(Options{NetNS: ns}); err == nil {
				t.Error("an engine without file descriptors")
			}
		},
		"never run": func(t *testing.T) {
			e, err := New(Options{NetNS: ns})
			if err != nil {
				t.Fatal(err)
			}
			for _, protocol := range []Protocol{TCP, UDP} {
				if _, err := e.Listen(Spec{Protocol: protocol, Addr: anyAddr, Balancer: NewBalancer(one())}); err != nil {
					t.Error(err)
				}
			}
			if err := e.Discard(); err != nil {
				t.Error(err)
			}
		},
		"not adopted": func(t *testing.T) {
			e, err := New(Options{NetNS: ns})
			if err != nil {
				t.Fatal(err)
			}
			for _, protocol := range []Protocol{TCP, UDP} {
				file, err := os.Open("/dev/null")
				if err != nil {
					t.Fatal(err)
				}
				if _, err := e.Listen(Spec{Protocol: protocol, Addr: anyAddr, Balancer: NewBalancer(one()), Inherited: file}); err == nil {
					t.Error("adopted a file")
				}
			}
			if err := e.Discard(); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, leave)
		if after := openFiles(t); after > before {
			t.Errorf("%s: %d file descriptors, before %d", name, after, before)
		}
	}
}

// A listener that could not be added to its loop is added later.
func TestUDPAddedLater(t *testing.T) {
	ns := kerneltest.Namespace(t)
	run(t, Options{NetNS: ns}, newSystem, func(b *bench) {
		_, a := echoUDP(t, ns, "a", "127.0.0.1:0")
		l, err := b.engine.Listen(Spec{Protocol: UDP, Addr: loopback, Balancer: NewBalancer(pools(a))})
		if err != nil {
			t.Fatal(err)
		}
		u := l.server.(*udpServer).listener
		broken := make(chan struct{})
		u.loop.Post(func() {
			_ = u.loop.Remove(u.fd)
			fd := u.fd
			u.fd = int(b.listenerFile()) // which is no socket that epoll takes
			u.start()
			u.fd = fd
			close(broken)
		})
		<-broken
		want(t, bound(t, ns, "127.0.0.8", l.Addr()), "x", "a:x")
	})
}

// listenerFile returns a regular file, which epoll refuses.
func (b *bench) listenerFile() uintptr {
	f, err := os.CreateTemp(b.TempDir(), "")
	if err != nil {
		b.Error(err)
		return 0
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		b.Error(err)
	}
	b.Cleanup(func() { _ = unix.Close(fd) })
	return uintptr(fd)
}

// If other programs have the ports that are left, flows to different backends share those of the Engine.
func TestUDPPortsOfOthers(t *testing.T) {
	ns := kerneltest.Namespace(t)
	kerneltest.Do(t, ns, func() error { return os.WriteFile(portRange, []byte("40000 40019"), 0) })
	_, x := echoUDP(t, ns, "a", "127.0.0.1:1")
	_, y := echoUDP(t, ns, "b", "127.0.0.1:2")
	r := epollUDP(t, ns, Options{}, Spec{Addr: netip.MustParseAddrPort("0.0.0.0:9"), Balancer: NewBalancer(pools(x, y))})
	hog := newSwarm(t, ns, "127.0.0.7", r) // it has one port itself
	const others = 13
	for range others {
		kerneltest.Do(t, ns, func() error {
			c, err := net.ListenUDP("udp4", nil)
			if err == nil {
				t.Cleanup(func() { _ = c.Close() })
			}
			return err
		})
	}
	const left = 20 - others - 1
	for i := range 2 * left {
		hog.send(i)
	}
	eventually(t, "flows", 2*left, func() int64 { return r.Stats().Flows })
}
