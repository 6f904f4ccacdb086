//go:build linux

package hostile

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

// clientConnections is how many connections a bad client keeps open.
const clientConnections = 300

// badClient is a client that wastes resources of a server.
type badClient struct {
	name   string
	first  string        // sent once
	repeat string        // sent repeatedly
	every  time.Duration // of more
}

// badClients attack the listeners of the daemon.
func badClients() []attack {
	var rows []attack
	const get = "GET /healthz HTTP/1.1\r\nHost: node\r\n"
	for _, client := range []badClient{
		{"idle connections", "", "", 0},
		{"slow headers", get, "X: y\r\n", 300 * time.Millisecond},
		{"huge headers", get, "X-" + strings.Repeat("y", 8<<10) + ": y\r\n", 10 * time.Millisecond},
		{
			"endless bodies", "POST /healthz HTTP/1.1\r\nHost: node\r\nTransfer-Encoding: chunked\r\n\r\n",
			"1000\r\n" + strings.Repeat("b", 0x1000) + "\r\n", 10 * time.Millisecond,
		},
		{"keep-alive requests", get + "\r\n", get + "\r\n", 300 * time.Millisecond},
	} {
		rows = append(rows, attack{
			name: client.name + " at the health ports", files: 64, limits: limits{cpu: 0.75},
			before: func(s *attackTest) {
				s.must(s.put("hostile.json", harness.Manifest([]object{harness.Service("checked", object{
					"clusterIP": "172.30.9.1", "type": "LoadBalancer", "externalTrafficPolicy": "Local",
					"healthCheckNodePort": 30999, "ports": []object{{"port": 80}},
				})})))
			},
			during: func(ctx context.Context, s *attackTest) error {
				s.pause(ctx, 200*time.Millisecond)
				client.connectMany(ctx, s.lab.Outside, healthAt, clientConnections)
				client.connectMany(ctx, s.lab.Outside, nodeAddr+":30999", clientConnections/3)
				<-ctx.Done()
				return nil
			},
		})
	}
	metrics := badClient{"", "GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n", "", 0}
	return append(rows, attack{
		name: "clients of /metrics that never read", duration: 3 * time.Second, limits: limits{cpu: 0.75},
		during: func(ctx context.Context, s *attackTest) error {
			metrics.connectMany(ctx, s.lab.NodeA, metricsAt, clientConnections)
			<-ctx.Done()
			return nil
		},
	})
}

// connectMany keeps n connections to an address until the context ends. A connection that is
// refused or closed is opened again after 100 ms.
func (c badClient) connectMany(ctx context.Context, from *lab.Host, address string, n int) {
	for range n {
		go func() {
			for ctx.Err() == nil {
				c.connect(ctx, from, address)
				select {
				case <-ctx.Done():
				case <-time.After(100 * time.Millisecond):
				}
			}
		}()
	}
}

// connect opens one connection and keeps it until the other end closes it. It reads nothing.
func (c badClient) connect(ctx context.Context, from *lab.Host, address string) {
	conn, err := dial(from, address, time.Second)
	if err != nil {
		return
	}
	var once sync.Once
	shut := func() { once.Do(func() { _ = conn.Close() }) }
	defer shut()
	defer context.AfterFunc(ctx, shut)()
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetReadBuffer(1 << 10)
		_ = tcp.SetLinger(0)
	}
	_, err = conn.Write([]byte(c.first))
	for err == nil && ctx.Err() == nil {
		wait := c.every
		if c.repeat == "" {
			wait = 100 * time.Millisecond
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		if err = closed(conn); err == nil {
			_, err = conn.Write([]byte(c.repeat))
		}
	}
}

// closed returns an error if the other end has closed a connection. It does not consume data.
func closed(conn net.Conn) error {
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return err
	}
	var peeked error
	err = raw.Control(func(fd uintptr) {
		n, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		if n == 0 && err == nil {
			peeked = fmt.Errorf("closed by %s", conn.RemoteAddr())
		} else if err != nil && !errors.Is(err, syscall.EAGAIN) {
			peeked = err
		}
	})
	return errors.Join(err, peeked)
}
