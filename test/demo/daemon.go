//go:build linux

package main

import (
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// daemon is a running sluice.
type daemon struct {
	cmd  *exec.Cmd
	log  *journal
	wait func() error
	born time.Time
	gone chan struct{}
}

// synced is a line of sluice's log: the kernel does what the manifests say.
type synced struct {
	services, steps int
	when            time.Time
}

const patience = 20 * time.Second

// errGone: sluice ended before it was ready. Its last words say why.
var errGone = errors.New("sluice gave up")

// startDaemon runs sluice on a host, in a process group of its own: a Ctrl-C is
// not for it.
func startDaemon(on *lab.Host, argv ...string) (*daemon, error) {
	d := &daemon{cmd: exec.Command(argv[0], argv[1:]...), log: &journal{}, gone: make(chan struct{})}
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	d.born = time.Now()
	wait, err := on.Start(d.cmd)
	if err != nil {
		return nil, err
	}
	d.wait = wait
	go func() {
		defer close(d.gone)
		_ = wait() // whoever is interested asks again
	}()
	return d, nil
}

// ready waits until the kernel does what the manifests say.
func (d *daemon) ready() (synced, error) {
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) {
		if s, ok := d.log.synced(); ok {
			return s, nil
		}
		select {
		case <-d.gone:
			return synced{}, fmt.Errorf("%w, saying:\n  %s", errGone, d.log.last(1))
		case <-time.After(time.Millisecond):
		}
	}
	return synced{}, fmt.Errorf("sluice is not ready after %v; its log ends:\n%s", patience, d.log.last(10))
}

// signal sends a signal and waits for the end.
func (d *daemon) signal(s syscall.Signal) (time.Duration, error) {
	start := time.Now()
	if err := d.cmd.Process.Signal(s); err != nil {
		return 0, fmt.Errorf("signal sluice: %w", err)
	}
	select {
	case <-d.gone:
		return time.Since(start), nil
	case <-time.After(patience):
		return 0, fmt.Errorf("sluice still runs %v after %v", patience, s)
	}
}

// journal keeps what a process prints, and when each line came.
type journal struct {
	mu    sync.Mutex
	lines []entry
	rest  string
}

type entry struct {
	text string
	when time.Time
}

// Write keeps whole lines.
func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	lines := strings.Split(j.rest+string(b), "\n")
	j.rest = lines[len(lines)-1]
	for _, l := range lines[:len(lines)-1] {
		j.lines = append(j.lines, entry{l, time.Now()})
	}
	return len(b), nil
}

// last returns the last lines.
func (j *journal) last(n int) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []string
	for _, l := range j.lines[max(0, len(j.lines)-n):] {
		out = append(out, l.text)
	}
	return strings.Join(out, "\n")
}

// warnings returns the lines that a person should look at.
func (j *journal) warnings() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []string
	for _, l := range j.lines {
		if strings.Contains(l.text, "level=WARN") || strings.Contains(l.text, "level=ERROR") {
			out = append(out, l.text)
		}
	}
	return out
}

// find returns the first line that has a text.
func (j *journal) find(text string) (entry, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, l := range j.lines {
		if strings.Contains(l.text, text) {
			return l, true
		}
	}
	return entry{}, false
}

// synced finds the first line that tells of a complete write.
func (j *journal) synced() (synced, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, l := range j.lines {
		if s, ok := parseSynced(l.text); ok {
			s.when = l.when
			return s, true
		}
	}
	return synced{}, false
}

func parseSynced(line string) (synced, bool) {
	if !strings.Contains(line, "msg=Synced") || !strings.Contains(line, "cause=start") {
		return synced{}, false
	}
	services, ok := field(line, "services")
	steps, found := field(line, "steps")
	return synced{services: services, steps: steps}, ok && found
}

// field reads a number off a line of the log.
func field(line, name string) (int, bool) {
	m := regexp.MustCompile(`\b` + name + `=(\d+)\b`).FindStringSubmatch(line)
	if m == nil {
		return 0, false
	}
	n, err := strconv.Atoi(m[1])
	return n, err == nil
}
