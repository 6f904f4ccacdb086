package relay

import (
	"net"
	"os"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// Clients that do not read from endless backends do not make the process hold many bytes.
func TestBytesOfStuckConnections(t *testing.T) {
	const clients = 600
	ns := kerneltest.Namespace(t)
	kerneltest.Do(t, ns, func() error { // little memory of the kernel
		if err := os.WriteFile("/proc/sys/net/ipv4/tcp_wmem", []byte("4096 16384 16384"), 0o644); err != nil {
			return err
		}
		return os.WriteFile("/proc/sys/net/ipv4/tcp_rmem", []byte("4096 20000 20000"), 0o644)
	})
	run(t, Options{NetNS: ns, MaxConnections: clients}, newSystem, func(b *bench) {
		l, balancer := b.front(one(b.backend(func(c *net.TCPConn) {
			_, _ = c.Write(make([]byte, 1<<20))
			_ = c.Close()
		})))
		var open []*net.TCPConn
		for range clients {
			open = append(open, b.dial(l.Addr()))
		}
		last := int64(-1)
		b.eventually("blocked", func() bool {
			before := last
			last = balancer.Counts().Sent
			time.Sleep(100 * time.Millisecond)
			return last == before && balancer.Counts().Open == clients
		})
		most := len(b.engine.system.(*poller).workers)*(maxKept+bufferSize) + clients*smallRead
		if n := b.held(); n > most {
			t.Errorf("the process holds %d bytes of %d connections, want at most %d", n, clients, most)
		}
		for _, c := range open {
			_ = c.SetLinger(0)
			_ = c.Close()
		}
	})
}

// held returns how many bytes of connections are in the memory of the process.
func (b *bench) held() (bytes int) {
	b.Helper()
	workers := b.engine.system.(*poller).workers
	sizes := make(chan int, len(workers))
	for _, w := range workers {
		w.Post(func() {
			n := 0
			for a := range w.members {
				for e := a.conns.Next; e != nil && e != &a.conns; e = e.Next {
					n += len(e.Item.up.pending) + len(e.Item.down.pending)
				}
			}
			sizes <- n
		})
	}
	for range workers {
		bytes += <-sizes
	}
	return bytes
}
