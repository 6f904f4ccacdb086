package forward

import (
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
	"github.com/sluice-proxy/sluice/test/machine"
)

// The pause of a handover, from the request to the first answer by the next Engine, waits for no timeout, also with
// thousands of connections. docs/userspace.md quotes the figures that this test logs on a quiet machine.
func TestPauseOfHandover(t *testing.T) {
	for _, count := range []int{100, 1000, 4500} {
		t.Run(fmt.Sprint(count), func(t *testing.T) {
			o := Options{NetNS: kerneltest.Namespace(t), MaxConnections: 2 * count}
			run(t, o, newSystem, func(b *bench) {
				target := one(b.echo())
				l, _ := b.front(target)
				clients := make([]*net.TCPConn, count)
				for i := range clients {
					clients[i] = b.dial(l.Addr())
					echoed(t, clients[i], "before")
				}
				limit := machine.Scale(10 * time.Second)
				last := clients[count-1] // its deadline is the latest
				s := Spec{Protocol: TCP, Addr: l.Addr(), Balancer: NewBalancer(target)}
				began := time.Now()
				next := b.handOver(o, s, func() { _, _ = last.Write([]byte("!")) })
				if _, err := io.ReadFull(last, make([]byte, 1)); err != nil {
					t.Error(err)
				}
				took := time.Since(began)
				t.Logf("%d connections: %v", count, took)
				if took > limit {
					t.Errorf("the pause was %v", took)
				}
				b.eventually("all open", func() bool { return next.balancer.Counts().Open == int64(count) })
				for _, c := range clients {
					_ = c.Close()
				}
			})
		})
	}
}
