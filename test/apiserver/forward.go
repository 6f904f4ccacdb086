//go:build linux

package apiserver

import (
	"io"
	"net"
	"sync"

	"github.com/sluice-proxy/sluice/test/lab"
)

// Forward lets programs on a host reach the API server, at the same loopback
// address as here.
func (c *Cluster) Forward(t lab.T, host *lab.Host) {
	t.Helper()
	server := c.env.ControlPlane.GetAPIServer().SecureServing
	address := net.JoinHostPort(server.Address, server.Port)
	var l net.Listener
	err := host.Do(func() error {
		var err error
		l, err = net.Listen("tcp", address)
		return err
	})
	if err != nil {
		t.Fatalf("listen for the API server on %s: %v", host.Name(), err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go join(conn, address)
		}
	}()
}

// join connects a connection with an address until either side ends.
func join(near net.Conn, address string) {
	defer func() { _ = near.Close() }()
	far, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], way[1]) // ended either way
			_ = way[0].Close()
		})
	}
	both.Wait()
}
