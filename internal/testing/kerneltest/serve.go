package kerneltest

import (
	"net"
	"testing"
)

// Serve accepts connections until the test ends, and calls handle with each in a goroutine of its own.
func Serve(t testing.TB, l net.Listener, handle func(net.Conn)) {
	t.Helper()
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // the listener is closed
			}
			go handle(c)
		}
	}()
}
