package relay

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// Bytes behind urgent data arrive, although the kernel lets nobody read past the mark of urgent data at once, and
// splice(2) not at all. The urgent byte itself is lost, as in each program that does not ask for it.
func TestUrgentData(t *testing.T) {
	for name, test := range map[string]struct {
		before int
		end    bool
	}{
		"few bytes":                 {before: 3},
		"many bytes":                {before: bufferSize + 4000},
		"few bytes, and the end":    {before: 3, end: true},
		"many bytes, and the end":   {before: bufferSize + 4000, end: true},
		"a full buffer, no end":     {before: bufferSize},
		"a full buffer, and an end": {before: bufferSize, end: true},
	} {
		t.Run(name, func(t *testing.T) {
			const behind = 4000
			e, err := New(Options{NetNS: kerneltest.Namespace(t)})
			if err != nil {
				t.Fatal(err)
			}
			b := &bench{T: t, ns: e.options.NetNS, engine: e}
			got := make(chan int, 1)
			l, _ := b.front(one(b.backend(func(c *net.TCPConn) {
				_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
				n, _ := io.ReadFull(c, make([]byte, test.before+behind))
				got <- n
				_ = c.Close()
			})))
			c := b.dial(l.Addr())
			_, _ = c.Write(random(1, test.before))
			sendUrgent(b, c)
			_, _ = c.Write(random(2, behind))
			if test.end {
				_ = c.CloseWrite()
			}
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- e.Run(ctx) }() // everything waits in the kernel before
			if n := <-got; n != test.before+behind {
				t.Errorf("%d bytes arrived, want %d", n, test.before+behind)
			}
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// sendUrgent sends a byte of urgent data.
func sendUrgent(b *bench, c *net.TCPConn) {
	b.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		b.Fatal(err)
	}
	failed := error(nil)
	err = raw.Control(func(fd uintptr) { failed = unix.Sendto(int(fd), []byte("!"), unix.MSG_OOB, nil) })
	if err != nil || failed != nil {
		b.Fatal(err, failed)
	}
}
