//go:build linux

package harness

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// CPU returns the CPU time that the process and its children, running and ended, have used so
// far, in user and system mode.
func (p *Process) CPU() (time.Duration, error) {
	sum, err := cpuTime(p.PID)
	if err != nil {
		return 0, err
	}
	for _, pid := range Children(p.PID) {
		d, _ := cpuTime(pid) // 0 if it has just ended
		sum += d
	}
	return sum, nil
}

func cpuTime(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseCPU(string(stat))
}

// parseCPU returns the user and system time in /proc/PID/stat, of the process and its ended
// children. The file has ticks of 10 ms.
func parseCPU(stat string) (time.Duration, error) {
	fields := strings.Fields(stat[strings.LastIndex(stat, ")")+1:]) // the name may contain anything
	if len(fields) < 15 {
		return 0, fmt.Errorf("invalid stat of a process: %q", stat)
	}
	var ticks int64
	for _, field := range fields[11:15] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read CPU time: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}

// PeakMemory returns the peak resident memory of a process ("self" or a PID) in bytes.
func PeakMemory(pid any) (uint64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%v/status", pid))
	if err != nil {
		return 0, err
	}
	_, rest, found := strings.Cut(string(text), "VmHWM:")
	fields := strings.Fields(rest)
	if !found || len(fields) == 0 {
		return 0, fmt.Errorf("no VmHWM in the status of process %v", pid)
	}
	kb, err := strconv.ParseUint(fields[0], 10, 64)
	return kb << 10, err
}

// Children returns the PIDs of the children of a process.
func Children(pid int) []int {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // the pattern is valid
	var out []int
	for _, path := range lists {
		text, _ := os.ReadFile(path) // empty if the thread has ended
		for word := range strings.FieldsSeq(string(text)) {
			if n, err := strconv.Atoi(word); err == nil {
				out = append(out, n)
			}
		}
	}
	return out
}

// Memory is the peak resident memory of a process, in bytes.
type Memory struct {
	Process uint64
	Child   uint64 // of its largest child
}

// MemoryWatch samples the memory of the short-lived children of a process.
type MemoryWatch struct {
	pid  int
	stop func()

	mu    sync.Mutex
	child uint64
}

// samplePeriod is short compared with the run time of a child that needs much memory.
const samplePeriod = 10 * time.Millisecond

// WatchMemory starts sampling, until Stop.
func (p *Process) WatchMemory() *MemoryWatch {
	w := &MemoryWatch{pid: p.PID}
	ctx, cancel := context.WithCancel(context.Background())
	var sampling sync.WaitGroup
	sampling.Go(func() {
		for ctx.Err() == nil {
			w.sample()
			time.Sleep(samplePeriod)
		}
	})
	w.stop = func() {
		cancel()
		sampling.Wait()
	}
	return w
}

// Stop ends the sampling.
func (w *MemoryWatch) Stop() { w.stop() }

// sample skips a child that still executes the same program as its parent: between fork and
// exec they share their memory.
func (w *MemoryWatch) sample() {
	own := executable(w.pid)
	for _, pid := range Children(w.pid) {
		peak, err := PeakMemory(pid)
		if err != nil || executable(pid) == own {
			continue
		}
		w.mu.Lock()
		w.child = max(w.child, peak)
		w.mu.Unlock()
	}
}

func executable(pid int) string {
	path, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)) // "" once it has ended
	return path
}

// Peak returns the peaks so far. The process must still be running.
func (w *MemoryWatch) Peak() (Memory, error) {
	own, err := PeakMemory(w.pid)
	w.mu.Lock()
	defer w.mu.Unlock()
	return Memory{Process: own, Child: w.child}, err
}

// Quantile returns the q-th quantile of some durations; 0 if there are none.
func Quantile(times []time.Duration, q float64) time.Duration {
	if len(times) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(times))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
