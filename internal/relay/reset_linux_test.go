package relay

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/machine"
)

// slowClient connects a client with a receive buffer of a few KiB.
func (b *bench) slowClient(to *Listener) *net.TCPConn {
	b.Helper()
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096) })
	}}
	var c net.Conn
	err := netns.Do(b.ns, func() (err error) {
		c, err = d.DialContext(b.Context(), "tcp", to.Addr().String())
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	return c.(*net.TCPConn)
}

// A client that is slow receives the bytes that the backend sent before its reset, whether or not the backend has
// ended its direction before, and then the reset. One that does not read gets the reset in time.
func TestResetBehindBytes(t *testing.T) {
	const size = 200_000
	for name, end := range map[string]func(*net.TCPConn){
		"reset":                func(*net.TCPConn) {},
		"reset behind the end": func(c *net.TCPConn) { _ = c.CloseWrite() },
	} {
		t.Run(name, func(t *testing.T) {
			ns := kerneltest.Namespace(t)
			run(t, Options{NetNS: ns}, newSystem, func(b *bench) {
				reset := make(chan time.Time, 2)
				at := b.backend(func(c *net.TCPConn) {
					_, _ = c.Read(make([]byte, 1))
					_, _ = c.Write(random(1, size))
					end(c)
					for n, err := size, error(nil); n > 0 && err == nil; time.Sleep(time.Millisecond) {
						raw, _ := c.SyscallConn()
						_ = raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
					}
					time.Sleep(20 * time.Millisecond)
					_ = c.SetLinger(0)
					began := time.Now()
					_ = c.Close()
					reset <- began
				})
				l, balancer := b.front(one(at))
				c := b.slowClient(l)
				_, _ = c.Write([]byte("x"))
				<-reset
				time.Sleep(100 * time.Millisecond)
				got, err := io.ReadAll(c)
				if len(got) != size || !errors.Is(err, syscall.ECONNRESET) && err != nil || name == "reset" && err == nil {
					t.Errorf("received %d bytes of %d, %v", len(got), size, err)
				}
				silent := b.slowClient(l)
				_, _ = silent.Write([]byte("x"))
				begin := <-reset
				b.eventually("ended", func() bool { return balancer.Counts().Open == 0 })
				if took := time.Since(begin); took < resetDelay/2 || took > machine.Scale(2*resetDelay) {
					t.Errorf("the client that does not read was reset after %v, want %v", took, resetDelay)
				}
			})
		})
	}
}
