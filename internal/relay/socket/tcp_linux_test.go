package socket

import (
	"errors"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

// await waits until a file descriptor has an event.
func await(t *testing.T, fd int, events int16) {
	t.Helper()
	const limit = 5000
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: events}}, limit); n != 1 || err != nil {
		t.Fatalf("file descriptor %d has no event: %v", fd, err)
	}
}

// pair returns both ends of a connection in a new network namespace.
func pair(t *testing.T, at string) (near, far int) {
	t.Helper()
	var l int
	var to netip.AddrPort
	kerneltest.Do(t, kerneltest.Namespace(t), func() (err error) {
		if l, err = ListenTCP(netip.MustParseAddrPort(at)); err != nil {
			return err
		}
		if to, err = Addr(l); err != nil {
			return err
		}
		near, err = Connect(to)
		return err
	})
	defer Close(l)
	await(t, l, unix.POLLIN)
	far, client, err := Accept(l)
	if err != nil {
		t.Fatal(err)
	}
	if local, err := Addr(near); local != client || err != nil {
		t.Errorf("the client has address %v (%v), Accept returns %v", local, err, client)
	}
	if at, err := Destination(far); at != to || err != nil {
		t.Errorf("destination %v, %v, want %v", at, err, to)
	}
	for _, fd := range []int{near, far} {
		for _, o := range [][2]int{{unix.IPPROTO_TCP, unix.TCP_NODELAY}, {unix.SOL_SOCKET, unix.SO_KEEPALIVE}} {
			if n, err := unix.GetsockoptInt(fd, o[0], o[1]); n == 0 || err != nil {
				t.Errorf("option %v is %d, %v", o, n, err)
			}
		}
	}
	return near, far
}

// Bytes, the end of one direction and a reset arrive, for both families.
func TestConnection(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(at, func(t *testing.T) {
			near, far := pair(t, at)
			buffer := make([]byte, 10)
			if _, e := Read(far, buffer); e != unix.EAGAIN {
				t.Errorf("read without bytes: %v", e)
			}
			if n, e := Write(near, []byte("hello")); n != 5 || e != 0 {
				t.Errorf("wrote %d, %v", n, e)
			}
			await(t, far, unix.POLLIN)
			if n, e := Read(far, buffer); string(buffer[:n]) != "hello" || e != 0 {
				t.Errorf("read %q, %v", buffer[:n], e)
			}
			CloseWrite(near)
			await(t, far, unix.POLLIN)
			if n, e := Read(far, buffer); n != 0 || e != 0 {
				t.Errorf("read %d, %v after the end", n, e)
			}
			SetReset(far)
			Close(far)
			await(t, near, unix.POLLERR)
			if err := Error(near); err != unix.ECONNRESET { //nolint:errorlint // it is an Errno
				t.Errorf("error %v after a reset", err)
			}
			Close(near)
		})
	}
}

// A pipe moves bytes between two connections.
func TestSplice(t *testing.T) {
	near, far := pair(t, "127.0.0.1:0")
	p, err := NewPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, e := Splice(far, p.Write, 100); e != unix.EAGAIN {
		t.Errorf("splice without bytes: %v", e)
	}
	_, _ = Write(near, []byte("hello"))
	await(t, far, unix.POLLIN)
	if n, e := Splice(far, p.Write, 100); n != 5 || e != 0 {
		t.Errorf("moved %d, %v", n, e)
	}
	if n, e := Splice(p.Read, far, 5); n != 5 || e != 0 { // back
		t.Errorf("moved %d, %v", n, e)
	}
	await(t, near, unix.POLLIN)
	buffer := make([]byte, 10)
	if n, e := Read(near, buffer); string(buffer[:n]) != "hello" || e != 0 {
		t.Errorf("read %q, %v", buffer[:n], e)
	}
}

// Errors of connections and addresses are reported.
func TestErrors(t *testing.T) {
	kerneltest.Do(t, kerneltest.Namespace(t), func() error {
		fd, err := Connect(netip.MustParseAddrPort("127.0.0.1:1"))
		if err == nil {
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd)}}, 5000)
			err = Error(fd)
		}
		if err != unix.ECONNREFUSED { //nolint:errorlint // it is an Errno
			t.Errorf("error %v, want a refusal", err)
		}
		if _, err := Connect(netip.MustParseAddrPort("192.0.2.1:1")); !errors.Is(err, unix.ENETUNREACH) {
			t.Errorf("error %v, want no route", err)
		}
		for _, at := range []string{"192.0.2.1:1", "[fe80::1%nothing]:1"} {
			if _, err := ListenTCP(netip.MustParseAddrPort(at)); err == nil {
				t.Errorf("listens on %s", at)
			}
		}
		return nil
	})
}

// The port of a connection to an address can be used again in TIME_WAIT, but not while the connection is open.
func TestConnectFrom(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(at, func(t *testing.T) {
			kerneltest.Do(t, kerneltest.Namespace(t), func() error {
				l, err := ListenTCP(netip.MustParseAddrPort(at))
				if err != nil {
					return err
				}
				defer Close(l)
				to, err := Addr(l)
				if err != nil {
					return err
				}
				first, err := Connect(to)
				if err != nil {
					return err
				}
				from, err := Addr(first)
				if err != nil {
					return err
				}
				other, err := ListenTCP(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), from.Port()))
				if err != nil { // a listener with this port at another address does not matter
					return err
				}
				defer Close(other)
				if fd, err := ConnectFrom(from, to); !errors.Is(err, unix.EADDRNOTAVAIL) {
					t.Errorf("from a port that is in use: %d, %v", fd, err)
				}
				for range 3 {
					endFirst(t, first, l)
					if first, err = ConnectFrom(from, to); err != nil {
						return err
					}
					if again, err := Addr(first); again != from || err != nil {
						t.Errorf("connected from %v, %v, want %v", again, err, from)
					}
				}
				Close(first)
				return nil
			})
		})
	}
}

// endFirst accepts a connection, closes it from the near side first, and verifies when it is Reusable.
func endFirst(t *testing.T, near, listener int) {
	t.Helper()
	await(t, listener, unix.POLLIN)
	far, _, err := Accept(listener)
	if err != nil {
		t.Fatal(err)
	}
	if Reusable(near) {
		t.Error("an open connection is reusable")
	}
	CloseWrite(near)
	await(t, far, unix.POLLIN)
	Close(far)
	await(t, near, unix.POLLIN)
	if !Reusable(near) {
		t.Error("a connection in TIME_WAIT is not reusable")
	}
	Close(near)
}
