//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// cpu is the time the proxy and its children, of which one may run for a minute,
// have run on processors.
func (p *process) cpu() (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
	if err != nil {
		return 0, err
	}
	sum, err := cpuTime(string(stat))
	if err != nil {
		return 0, err
	}
	for _, pid := range children(p.pid) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue // it has just ended
		}
		d, err := cpuTime(string(stat))
		if err != nil {
			return 0, err
		}
		sum += d
	}
	return sum, nil
}

// cpuTime reads user and system time, own and of ended children, from a
// /proc/PID/stat, where they are in ticks of 10 ms.
func cpuTime(stat string) (time.Duration, error) {
	words := strings.Fields(stat[strings.LastIndex(stat, ")")+1:]) // the name may hold anything
	if len(words) < 15 {
		return 0, fmt.Errorf("not the stat of a process: %q", stat)
	}
	var sum int64
	for _, word := range words[11:15] {
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read processor time: %w", err)
		}
		sum += n
	}
	return time.Duration(sum) * 10 * time.Millisecond, nil
}

// memory is the most a proxy has had, in bytes of resident memory.
type memory struct {
	Process uint64
	Child   uint64 // the largest child
}

func (m memory) total() uint64 { return m.Process + m.Child }

// watcher looks for the children of a proxy, which do not live long.
type watcher struct {
	pid  int
	stop func()

	mu    sync.Mutex
	child uint64
}

// lookEvery is short beside the life of a child that is large.
const lookEvery = 10 * time.Millisecond

func watch(pid int) *watcher {
	w := &watcher{pid: pid}
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-end:
				return
			case <-time.After(lookEvery):
				w.look()
			}
		}
	}()
	w.stop = sync.OnceFunc(func() {
		close(end)
		<-ended
	})
	return w
}

// look measures the children there are. One that is still a copy of its parent
// is none yet: between fork and exec they share their memory.
func (w *watcher) look() {
	own, err := readStatus(w.pid)
	if err != nil {
		return // it has ended
	}
	for _, pid := range children(w.pid) {
		status, err := readStatus(pid)
		if err != nil || status.program == own.program {
			continue
		}
		w.mu.Lock()
		w.child = max(w.child, status.peak)
		w.mu.Unlock()
	}
}

// peak is the most memory so far.
func (w *watcher) peak() (memory, error) {
	own, err := readStatus(w.pid)
	if err != nil {
		return memory{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return memory{Process: own.peak, Child: w.child}, nil
}

func children(pid int) []int {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // the pattern is good
	var out []int
	for _, path := range lists {
		text, _ := os.ReadFile(path) // a thread that has ended has none
		for word := range strings.FieldsSeq(string(text)) {
			if n, err := strconv.Atoi(word); err == nil {
				out = append(out, n)
			}
		}
	}
	return out
}

type status struct {
	program string
	peak    uint64 // bytes
}

func readStatus(pid int) (status, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return status{}, err
	}
	program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return status{}, err
	}
	peak, err := vmHWM(text)
	return status{program, peak}, err
}

func vmHWM(text []byte) (uint64, error) {
	for line := range bytes.Lines(text) {
		words := bytes.Fields(line)
		if len(words) == 3 && string(words[0]) == "VmHWM:" {
			kb, err := strconv.ParseUint(string(words[1]), 10, 64)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("no VmHWM in the status of a process")
}
