//go:build linux

package apiserver

import (
	"io"
	"net"
	"sync"

	"github.com/sluice-proxy/sluice/test/lab"
)

// Wire forwards connections from programs on a host to the API server.
type Wire struct {
	to string

	mu       sync.Mutex
	isCut    bool
	open     map[net.Conn]bool
	attempts int
}

// Forward lets programs on a host reach the API server, at the same loopback address as in this process.
func (c *Cluster) Forward(t lab.T, host *lab.Host) *Wire {
	t.Helper()
	server := c.env.ControlPlane.GetAPIServer().SecureServing
	w := &Wire{to: net.JoinHostPort(server.Address, server.Port), open: map[net.Conn]bool{}}
	var l net.Listener
	err := host.Do(func() error {
		var err error
		l, err = net.Listen("tcp", w.to)
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
			go w.join(conn)
		}
	}()
	return w
}

// Cut closes all connections, and new ones immediately, until Mend.
func (w *Wire) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isCut = true
	for conn := range w.open {
		_ = conn.Close()
	}
}

// Mend lets connections through again.
func (w *Wire) Mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isCut = false
}

// join copies data between a connection and the API server until either side closes it.
func (w *Wire) join(near net.Conn) {
	defer func() { _ = near.Close() }()
	if !w.keep(near) {
		return
	}
	defer w.drop(near)
	far, err := net.Dial("tcp", w.to)
	if err != nil {
		return
	}
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], way[1]) // an error means that a side was closed
			_ = way[0].Close()
		})
	}
	both.Wait()
}

// Attempts returns how many connections programs have started, including failed ones.
func (w *Wire) Attempts() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.attempts
}

func (w *Wire) keep(conn net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.attempts++
	if !w.isCut {
		w.open[conn] = true
	}
	return !w.isCut
}

func (w *Wire) drop(conn net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.open, conn)
}
