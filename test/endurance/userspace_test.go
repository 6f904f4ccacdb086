//go:build linux

package endurance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
	"github.com/sluice-proxy/sluice/test/lab"
)

// A reload in mode userspace resets open connections and refuses no new one: clients wait in the queues of the
// listening sockets.
func TestReloadsInModeUserspaceRefuseNobody(t *testing.T) {
	w := newTestEnv(t)
	dir := w.tempDir()
	userspace := func(qps int) settings {
		return settings{"mode": "userspace", "clientConnection": object{"qps": qps}}
	}
	w.args = []string{"--manifests=" + w.dir, "--hostname-override=node-a", "--config=" + w.config(dir, userspace(1))}
	d := w.start(launch{})
	d.waitSynced(1)
	clients, files, rules := w.startConnecting(), d.openFiles(), w.rules()
	for n := range 10 {
		open := w.keep(n % 3)
		w.config(dir, userspace(n+2))
		w.eventually(func() error {
			if got := w.reloads(d); got != n+1 {
				return fmt.Errorf("%d configurations took effect, want %d:\n%s", got, n+1, d.log)
			}
			return nil
		})
		d.waitSynced(1)
		if err := open.wait(); err == nil {
			w.Errorf("reload %d: a connection that was open continues", n)
		}
		w.waitAnsweredBy(w.client, w.ways()[0].To, 0, 1, 2)
	}
	connected, err := clients.end()
	if err != nil {
		w.Errorf("after %d connections one was refused: %v\n%s", connected, err, d.log)
	}
	w.Logf("%d connections were accepted during 10 reloads", connected)
	if now := w.rules(); now != rules {
		w.Errorf("reloads changed the rules:\n%s\nwant\n%s", now, rules)
	}
	w.eventually(func() error { // beside the ones of connections that have just begun
		if now := d.openFiles(); now > files+10 {
			return fmt.Errorf("%d file descriptors are open, %d were before the reloads", now, files)
		}
		return nil
	})
	w.checkDiff()
}

// connecting is a client that connects again and again.
type connecting struct {
	stop  func()
	ended chan error
	count int
}

// startConnecting starts to connect to the Service from a pod, until a connection is refused or end is called.
func (w *testEnv) startConnecting() *connecting {
	ctx, stop := context.WithCancel(w.Context())
	c := &connecting{stop: stop, ended: make(chan error, 1)}
	go func() {
		c.ended <- netns.Do(w.client.NetNSFD(), func() error {
			for ; ctx.Err() == nil; c.count++ {
				conn, err := net.DialTimeout("tcp", webIP4+":80", timeout)
				switch {
				case err == nil:
					_ = conn.Close()
				case !errors.Is(err, syscall.ECONNRESET): // a reset: it was accepted, right before a reload
					return err
				}
			}
			return nil
		})
	}()
	return c
}

// end stops the client, and returns how many connections were accepted.
func (c *connecting) end() (int, error) {
	c.stop()
	err := <-c.ended
	return c.count, err
}

// kept is a connection with one question after the other.
type kept struct {
	longest, count, broken atomic.Int64
	stop                   chan struct{}
	ended                  chan error
	close                  func()
}

// keep opens a connection to a pod through the Service.
func (w *testEnv) keep(pod int) *kept {
	w.Helper()
	to := netip.AddrPortFrom(netip.MustParseAddr(webIP4), 80)
	var flow *lab.Flow
	w.eventually(func() error {
		f, r := w.client.Open(lab.Probe{Protocol: lab.TCP, To: to, Timeout: timeout})
		if f == nil || r.Backend.Addr() != w.pods[pod].Addr(to.Addr()) {
			if f != nil {
				f.Close()
			}
			return fmt.Errorf("%s, want pod %d", r, pod)
		}
		flow = f
		return nil
	})
	k := &kept{stop: make(chan struct{}), ended: make(chan error, 1), close: sync.OnceFunc(flow.Close)}
	go func() { k.ended <- k.ask(flow) }()
	w.Cleanup(k.close)
	return k
}

func (k *kept) ask(flow *lab.Flow) error {
	for {
		select {
		case <-k.stop:
			return nil
		default:
		}
		begin := time.Now()
		if r := flow.Ask([]byte("question")); r.Outcome != lab.Answered {
			k.broken.Store(1)
			return fmt.Errorf("question %d: %s", k.count.Load(), r)
		}
		k.count.Add(1)
		k.longest.Store(max(k.longest.Load(), int64(time.Since(begin))))
		time.Sleep(time.Millisecond)
	}
}

// wait waits until a question fails, and returns why; nil if none fails for a while.
func (k *kept) wait() error {
	select {
	case err := <-k.ended:
		return err
	case <-time.After(timeout):
		return k.end()
	}
}

// end ends the questions, of which none may have failed.
func (k *kept) end() error {
	close(k.stop)
	return <-k.ended
}
