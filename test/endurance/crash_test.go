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
	crashes = 10
	crowd   = 2000 // Services besides "web"
)

// Sluice is killed in the middle of what it writes, again and again, while
// endpoints come and go.
func TestACrashLoopLosesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("many.json", many(crowd, 0))
	d := w.start(launch{})
	d.settled(crowd + 1)
	traffic := w.traffic()
	commits := w.commits()
	rest := w.churn()

	var writing, unfinished, half int
	for n := range crashes {
		d.kill()
		drain(commits)
		w.write("many.json", many(crowd, 1+n%2))
		d = w.start(launch{})
		select {
		case <-commits:
			writing++
		case <-time.After(patience):
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
	rest()
	d.kill()
	d = w.start(launch{})
	d.settled(crowd + 1)
	w.same()
	w.unharmed(traffic)
	w.Logf("%d crashes, %d as soon as something was written, %d before all was, %d left two generations side by side",
		2*crashes, writing, unfinished, half)
	if writing < crashes || unfinished == 0 {
		w.Errorf("of %d crashes that were to come in the middle of a write %d came in time", crashes, min(writing, unfinished))
	}
	w.answeredBy(w.client, w.ways()[0].To, 0)
	w.answeredBy(w.client, w.ways()[1].To, 0)
	w.programmed(crowd)
}

// churn changes what is behind "web" all the time, until it is told to rest; then
// there is one pod.
func (w *world) churn() (rest func()) {
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
	rest = sync.OnceFunc(func() {
		close(over)
		wait.Wait()
		w.write("web.json", web(0))
	})
	w.Cleanup(rest)
	return rest
}

// halfWritten tells that the kernel holds endpoints of two generations.
func (w *world) halfWritten() bool {
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

// programmed makes sure that each of the n Services of many has its endpoints.
func (w *world) programmed(n int) {
	w.Helper()
	out, status := w.asks("get", "backends")
	if status != 0 {
		w.Fatalf("sluice get backends ends with %d: %s", status, out)
	}
	if got, want := strings.Count(out, "many-"), 2*(3*n+n/2); got != want {
		w.Errorf("%d backends of many, want %d:\n%.2000s", got, want, out)
	}
}

// commits tells of each transaction of nf_tables on node A, as soon as it counts,
// until the test ends.
func (w *world) commits() <-chan struct{} {
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
	heard, over := make(chan struct{}, 1), make(chan struct{})
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
			select { // there was more than there is room for: that counts too
			case heard <- struct{}{}:
			default:
			}
		}
	})
	w.Cleanup(func() {
		close(over)
		wait.Wait()
		_ = unix.Close(fd)
	})
	return heard
}

// drain forgets what was heard, once nothing comes any more.
func drain(heard <-chan struct{}) {
	for {
		select {
		case <-heard:
		case <-time.After(10 * time.Millisecond):
			return
		}
	}
}
