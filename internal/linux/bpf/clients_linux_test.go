package bpf

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/lab"
)

// A client that is no known pod, and connects to a Service, is reported; one that connects elsewhere, or is known, is
// not.
func TestUnknownClients(t *testing.T) {
	n := newNode(t)
	n.write(service(vip, 6, OfPods, "127.0.0.1:8080")...)
	known, other := kerneltest.Namespace(t), kerneltest.Namespace(t)
	n.know(known, "10.1.0.1")
	n.know(other)
	cookie := n.pods[1].NetNS
	ctx, cancel := context.WithCancel(t.Context())
	reports, ended := make(chan uint64, 100), make(chan error, 1)
	go func() { ended <- n.conn.UnknownClients(ctx, func(netns uint64) { reports <- netns }) }()
	inKnown, inOther := lab.Inside(t, n.opt.Cgroup, known), lab.Inside(t, n.opt.Cgroup, other)
	connect := func(inside func(func() error) error, to string) {
		_ = inside(func() error { _, _, err := ask(to); return err }) // there is no server
	}
	connect(inKnown, vip)
	connect(inOther, "127.0.0.1:9")
	time.Sleep(100 * time.Millisecond)
	if len(reports) > 0 {
		t.Errorf("reported: %d", <-reports)
	}
	eventually(t, func() error {
		connect(inOther, vip)
		select {
		case got := <-reports:
			return differs("the namespace of the client", got, cookie)
		case <-time.After(time.Second):
			return errors.New("nothing is reported")
		}
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
