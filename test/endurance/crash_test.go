//go:build linux

package endurance

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	crashes       = 10
	crashServices = 2000 // Services besides "web"
)

// Sluice is killed repeatedly in the middle of a write, while endpoints change.
func TestACrashLoopBreaksNoConnection(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	w.write("many.json", many(crashServices, 0))
	d := w.start(launch{})
	d.waitSynced(crashServices + 1)
	traffic := w.startTraffic()
	commits := w.commits()
	stop := w.churn()

	var writing, unfinished, half int
	for n := range crashes {
		d.kill()
		drain(commits)
		w.write("many.json", many(crashServices, 1+n%2))
		d = w.start(launch{})
		select {
		case <-commits:
			writing++
		case <-time.After(timeout):
		}
		if n%2 == 1 {
			time.Sleep(time.Duration(rand.IntN(4)) * time.Millisecond)
		}
		d.kill()
		if d.log.count("msg=Synced") == 0 {
			unfinished++
		}
		if w.halfWritten() {
			half++
		}
		d = w.start(launch{})
	}
	stop()
	d.kill()
	d = w.start(launch{})
	d.waitSynced(crashServices + 1)
	w.checkDiff()
	w.checkTraffic(traffic)
	w.Logf("%d crashes, %d right after the first transaction, %d before the complete write, "+
		"%d with endpoints of two generations in the kernel",
		2*crashes, writing, unfinished, half)
	if writing < crashes || unfinished == 0 {
		w.Errorf("of %d crashes in the middle of a write, %d were in time", crashes, min(writing, unfinished))
	}
	w.waitAnsweredBy(w.client, w.ways()[0].To, 0)
	w.waitAnsweredBy(w.client, w.ways()[1].To, 0)
	w.checkBackends(crashServices)
}

// churn continuously changes the endpoints of Service web until stop is called, which leaves one endpoint.
func (w *testEnv) churn() (stop func()) {
	over := make(chan struct{})
	var wait sync.WaitGroup
	file := filepath.Join(w.dir, "web.json")
	wait.Go(func() {
		for n := 1; ; n++ {
			select {
			case <-over:
				return
			case <-time.After(5 * time.Millisecond):
			}
			var pods []int
			for i := range w.pods {
				if n>>i&1 == 1 {
					pods = append(pods, i)
				}
			}
			if len(pods) == 0 {
				continue
			}
			if err := replace(file, web(pods...)); err != nil {
				w.Error(err)
				return
			}
		}
	})
	stop = sync.OnceFunc(func() {
		close(over)
		wait.Wait()
		w.write("web.json", web(0))
	})
	w.Cleanup(stop)
	return stop
}

// halfWritten reports whether the kernel has endpoints of two generations.
func (w *testEnv) halfWritten() bool {
	w.Helper()
	rules := w.rules()
	generations := 0
	for g := range 3 {
		if strings.Contains(rules, fmt.Sprintf(" 10.%d.", 181+g)) {
			generations++
		}
	}
	return generations > 1
}

// checkBackends verifies that each of the n Services of many has its endpoints.
func (w *testEnv) checkBackends(n int) {
	w.Helper()
	out, status := w.runSluice("get", "backends")
	if status != 0 {
		w.Fatalf("sluice get backends exits with %d: %s", status, out)
	}
	if got, want := strings.Count(out, "many-"), 2*(3*n+n/2); got != want {
		w.Errorf("%d backends of many, want %d:\n%.2000s", got, want, out)
	}
}

// commits returns a channel that receives a value after each nf_tables transaction on node A, until the test ends.
func (w *testEnv) commits() <-chan struct{} {
	w.Helper()
	const group = 1 << (unix.NFNLGRP_NFTABLES - 1)
	fd := -1
	w.must(w.lab.NodeA.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: group})
		}
		return err
	}))
	w.must(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}))
	committed, over := make(chan struct{}, 1), make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		for b := make([]byte, 1<<16); ; {
			select {
			case <-over:
				return
			default:
			}
			if _, _, err := unix.Recvfrom(fd, b, 0); errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
				continue
			}
			select { // even after an overflow of the socket buffer
			case committed <- struct{}{}:
			default:
			}
		}
	})
	w.Cleanup(func() {
		close(over)
		wait.Wait()
		_ = unix.Close(fd)
	})
	return committed
}

// drain discards values until none has arrived for 10 ms.
func drain(events <-chan struct{}) {
	for {
		select {
		case <-events:
		case <-time.After(10 * time.Millisecond):
			return
		}
	}
}
