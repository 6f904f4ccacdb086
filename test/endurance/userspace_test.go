//go:build linux

package endurance

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// In mode userspace the process itself forwards. While it executes its program anew, no connection is refused,
// and no connection that is open ends or loses a byte.
func TestReloadsInModeUserspaceKeepConnections(t *testing.T) {
	w := newTestEnv(t)
	dir := w.tempDir()
	userspace := func(qps int) settings {
		return settings{"mode": "userspace", "clientConnection": object{"qps": qps}}
	}
	w.args = []string{"--manifests=" + w.dir, "--hostname-override=node-a", "--drain-timeout=3s", "--config=" + w.config(dir, userspace(1))}
	d := w.start(launch{})
	d.waitSynced(1)
	pauses, leaves := w.keep(0), w.keep(2)
	traffic := w.startTraffic()
	files, rules := d.openFiles(), w.rules()
	reload := func(n int) {
		w.config(dir, userspace(n+1))
		w.eventually(func() error {
			if got := w.reloads(d); got != n {
				return fmt.Errorf("%d configurations took effect, want %d:\n%s", got, n, d.log)
			}
			return nil
		})
		s := d.waitSynced(1)
		if s.LastSync.Steps != 0 {
			w.Errorf("the first write after a reload is %+v, want no steps", s.LastSync)
		}
		if err := traffic.Broken(); err != nil {
			w.Fatalf("reload %d: %v\n%s", n, err, d.log)
		}
	}
	for n := range 10 {
		reload(n + 1)
	}
	if now := w.rules(); now != rules {
		w.Errorf("reloads changed the rules:\n%s\nwant\n%s", now, rules)
	}
	w.eventually(func() error { // beside those of connections that have just begun
		if now := d.openFiles(); now > files+10 {
			return fmt.Errorf("%d file descriptors are open, %d were before the reloads", now, files)
		}
		return nil
	})
	w.checkTraffic(traffic)
	w.checkDiff()

	// An endpoint leaves. A reload does not make its connections end later or earlier.
	begin := time.Now()
	w.write("web.json", web(0))
	w.waitAnsweredBy(w.client, netip.AddrPortFrom(netip.MustParseAddr(webIP4), 80), 0)
	traffic = w.startTraffic()
	reload(11)
	w.eventually(func() error {
		if leaves.broken.Load() == 0 {
			return fmt.Errorf("connections to an endpoint that has left go on for %v", time.Since(begin))
		}
		return nil
	})
	if took := time.Since(begin); took < 2500*time.Millisecond {
		w.Errorf("connections to an endpoint that has left ended after %v", took)
	}
	w.checkTraffic(traffic)
	if err := pauses.end(); err != nil {
		w.Errorf("a connection that was open: %v", err)
	}
	_ = leaves.end() // it is broken
	w.Logf("the longest answer on an open connection took %v, of %d", time.Duration(pauses.longest.Load()), pauses.count.Load())
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

// end ends the questions, of which none may have failed.
func (k *kept) end() error {
	close(k.stop)
	return <-k.ended
}
