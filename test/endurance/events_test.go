//go:build linux

package endurance

import (
	"bufio"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// watched is what nf_tables tells of changes on node A.
type watched struct {
	mu    sync.Mutex
	lines []string
	news  chan struct{}
}

// events listens until the test ends.
func (w *world) events() *watched {
	w.Helper()
	e := &watched{news: make(chan struct{}, 1)}
	cmd := exec.Command("nft", "monitor")
	out, err := cmd.StdoutPipe()
	w.must(err)
	_, err = w.lab.NodeA.Start(cmd)
	w.must(err)
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			e.mu.Lock()
			e.lines = append(e.lines, lines.Text())
			e.mu.Unlock()
			select {
			case e.news <- struct{}{}:
			default:
			}
		}
	}()
	// It listens once it hears.
	w.eventually(func() error {
		w.lab.NodeA.Nft("table inet heard {}; delete table inet heard")
		if !e.next(50 * time.Millisecond) {
			return fmt.Errorf("nft monitor hears nothing")
		}
		return nil
	})
	e.drain()
	return e
}

// next waits for a change.
func (e *watched) next(most time.Duration) bool {
	select {
	case <-e.news:
		return true
	case <-time.After(most):
		return false
	}
}

// drain forgets what was heard, once nothing comes any more.
func (e *watched) drain() {
	for e.next(20 * time.Millisecond) {
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lines = nil
}

// with are the lines that contain something.
func (e *watched) with(text string) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []string
	for _, l := range e.lines {
		if strings.Contains(l, text) {
			out = append(out, l)
		}
	}
	return out
}
