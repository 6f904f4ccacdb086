package forward

import (
	"context"
	"io"
	"net"
	"testing"

	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
)

// All clients that wait in the queue of a socket are served when it is retired, however many these are.
func TestRetireServesTheQueue(t *testing.T) {
	const clients = 300
	e, err := New(Options{NetNS: kerneltest.Namespace(t)})
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{T: t, ns: e.options.NetNS, engine: e}
	l, _ := b.front(one(b.echo()))
	var waiting []*net.TCPConn
	for range clients {
		waiting = append(waiting, b.dial(l.Addr()))
	}
	l.Retire()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- e.Run(ctx) }()
	failed := 0
	for _, c := range waiting {
		_, err := c.Write([]byte("x"))
		if err == nil {
			_, err = io.ReadFull(c, make([]byte, 1))
		}
		if err != nil {
			failed++
		}
	}
	if failed > 0 {
		t.Errorf("%d of %d clients were not served", failed, clients)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
