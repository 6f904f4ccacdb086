//go:build linux

package endurance

import (
	"bufio"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
)

// events are the changes of nf_tables on node A, as nft monitor prints them.
type events struct {
	w     *testEnv
	marks int

	mu    sync.Mutex
	lines []string
}

// events records changes until the test ends.
func (w *testEnv) events() *events {
	w.Helper()
	e := &events{w: w}
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
		}
	}()
	w.eventually(func() error { // until nft monitor has subscribed
		if len(e.all(markPrefix)) > 0 {
			return nil
		}
		e.mark()
		return errors.New("nft monitor prints nothing")
	})
	e.drain()
	return e
}

// markPrefix begins the names of tables that mark a point in time among changes.
const markPrefix = "mark-"

// mark creates and deletes a table, which other programs ignore, and returns its name.
func (e *events) mark() string {
	e.w.Helper()
	e.marks++
	name := fmt.Sprintf("%s%d", markPrefix, e.marks)
	e.w.lab.NodeA.Nft("table inet " + name + " {}; delete table inet " + name)
	return name
}

// await waits until all earlier changes are recorded.
func (e *events) await() {
	e.w.Helper()
	last := "delete table inet " + e.mark()
	e.w.eventually(func() error {
		if len(e.all(last)) == 0 {
			return fmt.Errorf("nft monitor has not printed %q", last)
		}
		return nil
	})
}

// drain discards all earlier changes.
func (e *events) drain() {
	e.w.Helper()
	e.await()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lines = nil
}

// containing returns the changes since the last drain that contain a text.
func (e *events) containing(text string) []string {
	e.w.Helper()
	e.await()
	var out []string
	for _, line := range e.all(text) {
		if !strings.Contains(line, markPrefix) && !strings.HasPrefix(line, "#") {
			out = append(out, line)
		}
	}
	return out
}

// all returns the recorded lines that contain a text.
func (e *events) all(text string) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []string
	for _, line := range e.lines {
		if strings.Contains(line, text) {
			out = append(out, line)
		}
	}
	return out
}
