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

// crowd is how many connections a stranger keeps at a time.
const crowd = 300

// stranger is a client that means no good.
type stranger struct {
	name string
	says string        // at once
	more string        // again and again
	pace time.Duration // of more
}

// strangers attack the listeners of the daemon.
func strangers() []attack {
	var rows []attack
	const get = "GET /healthz HTTP/1.1\r\nHost: node\r\n"
	for _, who := range []stranger{
		{"idle connections", "", "", 0},
		{"slow headers", get, "X: y\r\n", 300 * time.Millisecond},
		{"huge headers", get, "X-" + strings.Repeat("y", 8<<10) + ": y\r\n", 10 * time.Millisecond},
		{"endless bodies", "POST /healthz HTTP/1.1\r\nHost: node\r\nTransfer-Encoding: chunked\r\n\r\n", "1000\r\n" + strings.Repeat("b", 0x1000) + "\r\n", 10 * time.Millisecond},
		{"requests that are kept alive", get + "\r\n", get + "\r\n", 300 * time.Millisecond},
	} {
		rows = append(rows, attack{
			name: who.name + " at the health ports", files: 64, limits: limits{cpu: 0.75},
			before: func(s *siege) {
				s.must(s.put("hostile.json", harness.Manifest([]object{harness.Service("checked", object{
					"clusterIP": "172.30.9.1", "type": "LoadBalancer", "externalTrafficPolicy": "Local",
					"healthCheckNodePort": 30999, "ports": []object{{"port": 80}},
				})})))
			},
			during: func(ctx context.Context, s *siege) error {
				s.pause(ctx, 200*time.Millisecond)
				who.throng(ctx, s.lab.Outside, healthAt, crowd)
				who.throng(ctx, s.lab.Outside, nodeAddr+":30999", crowd/3)
				<-ctx.Done()
				return nil
			},
		})
	}
	metrics := stranger{"", "GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n", "", 0}
	return append(rows, attack{
		name: "readers of /metrics that never read", lasts: 3 * time.Second, limits: limits{cpu: 0.75},
		during: func(ctx context.Context, s *siege) error {
			metrics.throng(ctx, s.lab.NodeA, metricsAt, crowd)
			<-ctx.Done()
			return nil
		},
	})
}

// throng keeps n connections to an address until the context ends. A connection
// that is refused or closed is made again, at most every 100 ms.
func (who stranger) throng(ctx context.Context, from *lab.Host, address string, n int) {
	for range n {
		go func() {
			for ctx.Err() == nil {
				who.visit(ctx, from, address)
				select {
				case <-ctx.Done():
				case <-time.After(100 * time.Millisecond):
				}
			}
		}()
	}
}

// visit makes one connection and keeps it until the other end closes it. It
// reads nothing.
func (who stranger) visit(ctx context.Context, from *lab.Host, address string) {
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
	_, err = conn.Write([]byte(who.says))
	for err == nil && ctx.Err() == nil {
		wait := who.pace
		if who.more == "" {
			wait = 100 * time.Millisecond
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		if err = closed(conn); err == nil {
			_, err = conn.Write([]byte(who.more))
		}
	}
}

// closed returns an error if the other end has closed a connection. It takes
// nothing from it.
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
