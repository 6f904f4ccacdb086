package relay

import (
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// A Service whose endpoint is its own address, or the address of another such Service, does not make the connection
// of one client take all connections.
func TestLoopOfConnections(t *testing.T) {
	run(t, Options{NetNS: kerneltest.Namespace(t), MaxConnections: 300}, newSystem, func(b *bench) {
		l, balancer := b.front(one())
		other, _ := b.front(one(l.Addr()))
		balancer.Set(one(other.Addr()))
		_, _ = b.outcome(l.Addr())
		if n := balancer.Counts().Connections; n > 100 { // a client may be accepted right before its source is recorded
			t.Errorf("one client made %d connections through the Service", n)
		}
		if b.engine.Stats().Refused[reasonLoop] == 0 {
			t.Error("no connection was refused as a loop")
		}
		t.Log(b.engine.Stats())
	})
}

// The same for datagrams.
func TestLoopOfFlows(t *testing.T) {
	ns := kerneltest.Namespace(t)
	balancer := NewBalancer(one())
	r := epollUDP(t, ns, Options{MaxFlows: 300}, Spec{Addr: loopback, Balancer: balancer})
	balancer.Set(one(r.at))
	c := dialUDP(t, ns, r.at)
	_, _ = c.Write([]byte("x"))
	time.Sleep(300 * time.Millisecond)
	if n := balancer.Counts().Received; n > 20 {
		t.Errorf("one datagram was forwarded %d times", n)
	}
	t.Log(r.Stats())
}
