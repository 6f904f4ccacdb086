package relay

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
)

// from connects a client with a source address.
func (b *bench) from(source string, to netip.AddrPort) (*net.TCPConn, error) {
	var c net.Conn
	err := netns.Do(b.ns, func() (err error) {
		d := net.Dialer{Timeout: 30 * time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}
		c, err = d.DialContext(b.Context(), "tcp", to.String())
		return err
	})
	if err != nil {
		return nil, err
	}
	b.Cleanup(func() { _ = c.Close() })
	return c.(*net.TCPConn), c.SetDeadline(time.Now().Add(time.Minute))
}

// talk sends a byte and receives one.
func talk(c *net.TCPConn) error {
	if _, err := c.Write([]byte("x")); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 1))
	return err
}

// One client may have all connections while no other wants one. Then it loses one for each connection of the
// other client, up to half of them.
func TestFairness(t *testing.T) {
	const limit = 8
	both(t, Options{MaxConnections: limit}, func(b *bench) {
		l, _ := b.front(one(b.echo()))
		var hog []*net.TCPConn
		for range limit {
			c, err := b.from("127.0.0.7", l.Addr())
			if err == nil {
				err = talk(c)
			}
			if err != nil {
				t.Fatalf("connection %d of %d: %v", len(hog), limit, err)
			}
			hog = append(hog, c)
		}
		for i := range limit/2 + 1 {
			c, err := b.from("127.0.0.8", l.Addr())
			if err == nil {
				err = talk(c)
			}
			if (err == nil) != (i < limit/2) {
				t.Errorf("connection %d of another client: %v", i, err)
			}
		}
		lost := 0
		for _, c := range hog {
			err := talk(c)
			if err != nil {
				lost++
			}
			if err != nil && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
				t.Errorf("the first client: %v, want a reset", err)
			}
		}
		if lost != limit/2 {
			t.Errorf("the first client has lost %d connections, want %d", lost, limit/2)
		}
		const gone = limit/2 + 1 // the last one was refused
		s := b.engine.Stats()
		if s.Refused[reasonConnections] != gone || s.Connections != limit {
			t.Errorf("%+v, want %d refused", s, gone)
		}
	})
}

// A client that holds as many connections as it can, opens them again when they end, and sends a byte on each now and
// then, does not keep others from the Service.
func TestSlowClient(t *testing.T) {
	const limit, attempts, others = 50, 1500, 40
	both(t, Options{MaxConnections: limit}, func(b *bench) {
		l, _ := b.front(one(b.echo()))
		var attack sync.WaitGroup
		full := make(chan struct{})
		attack.Go(func() {
			var open []*net.TCPConn
			for i := range attempts {
				if i == limit {
					close(full)
				}
				if c, err := b.try(l.Addr(), time.Second); err == nil {
					open = append(open, c)
				}
				if len(open) > 0 {
					_, _ = open[i%len(open)].Write([]byte("x"))
				}
			}
			for _, c := range open {
				_ = c.Close()
			}
		})
		<-full
		slowest := time.Duration(0)
		for i := range others {
			begin := time.Now()
			c, err := b.from(fmt.Sprintf("127.0.9.%d", i%5+1), l.Addr())
			if err == nil {
				err = talk(c)
			}
			if err != nil {
				t.Errorf("client %d: %v", i, err)
			}
			slowest = max(slowest, time.Since(begin))
			if c != nil {
				_ = c.Close()
			}
		}
		attack.Wait()
		if s := b.engine.Stats(); s.Connections > limit || s.Refused[reasonConnections] == 0 || slowest > time.Second {
			t.Errorf("slowest %v, %+v", slowest, s)
		}
	})
}
