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
	w     *world
	marks int

	mu    sync.Mutex
	lines []string
}

// events records changes until the test ends.
func (w *world) events() *events {
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
	w.eventually(func() error { // until it has subscribed
		if len(e.all(markPrefix)) > 0 {
			return nil
		}
		e.mark()
		return errors.New("nft monitor prints nothing")
	})
	e.drain()
	return e
}

// markPrefix begins the name of a table that marks a point of time among changes.
const markPrefix = "mark-"

// mark makes and deletes a table, which other programs ignore, and returns its name.
func (e *events) mark() string {
	e.w.Helper()
	e.marks++
	name := fmt.Sprintf("%s%d", markPrefix, e.marks)
	e.w.lab.NodeA.Nft("table inet " + name + " {}; delete table inet " + name)
	return name
}

// await waits until all changes that were made before are recorded.
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

// drain forgets all changes that were made before.
func (e *events) drain() {
	e.w.Helper()
	e.await()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lines = nil
}

// with returns the changes since the last drain that contain a text.
func (e *events) with(text string) []string {
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
