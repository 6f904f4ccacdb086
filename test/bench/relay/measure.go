//go:build linux

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/test/harness"
)

// sample is one measurement of one contender.
type sample struct {
	outcome
	CPU    time.Duration // of the proxy
	Memory uint64        // resident bytes of the proxy with all connections open
}

// results are the samples of each contender and measurement, one for each round.
type results map[string]map[work][]sample

func works(o options) []work {
	var list []work
	if o.ports == "" {
		for _, n := range o.connections {
			list = append(list, work{requests, n})
		}
		list = append(list, work{streams, 1}, work{streams, 4})
	}
	for _, n := range o.connections {
		list = append(list, work{connects, n})
	}
	return list
}

// measureAll measures all contenders in turns. Each round begins with another one.
func measureAll(o options, contenders []*contender) (results, error) {
	all := results{}
	for _, c := range contenders {
		all[c.name] = map[work][]sample{}
	}
	for round := range o.rounds {
		for _, w := range works(o) {
			for i := range contenders {
				c := contenders[(i+round)%len(contenders)]
				s, err := c.measure(load{work: w, Target: c.at[w.Kind].String(), Time: o.time}, func() error { return nil })
				if err != nil {
					return nil, fmt.Errorf("%s, %s, %d connections: %w", c.name, w.Kind, w.Connections, err)
				}
				all[c.name][w] = append(all[c.name][w], s)
			}
		}
	}
	return all, nil
}

// measure runs a load against a contender, and meanwhile calls also.
func (c *contender) measure(l load, also func() error) (s sample, err error) {
	cmd, err := roleCommand(roleLoad, l)
	if err != nil {
		return s, err
	}
	commands, err := cmd.StdinPipe()
	if err != nil {
		return s, err
	}
	lines, err := cmd.StdoutPipe()
	if err != nil {
		return s, err
	}
	cmd.Stderr = os.Stderr
	p, err := harness.Start(c.host, cmd)
	if err != nil {
		return s, err
	}
	limit := time.AfterFunc(l.Time+3*patience, func() { _ = p.Signal(syscall.SIGKILL) })
	defer limit.Stop()
	s, err = c.observe(commands, bufio.NewReader(lines), also)
	_ = commands.Close() // the load ends
	<-p.Ended()
	return s, errors.Join(err, p.Err())
}

// observe starts the measurement of a load that is ready, and reads its result and the usage of the proxy.
func (c *contender) observe(commands io.Writer, lines *bufio.Reader, also func() error) (s sample, err error) {
	if line, err := lines.ReadString('\n'); err != nil || strings.TrimSpace(line) != readyLine {
		return s, fmt.Errorf("wait for the connections: %q, %w", line, err)
	}
	before, err := c.cpu()
	if err != nil {
		return s, err
	}
	if _, err := io.WriteString(commands, "go\n"); err != nil {
		return s, err
	}
	if err := also(); err != nil {
		return s, err
	}
	if err := json.NewDecoder(lines).Decode(&s.outcome); err != nil {
		return s, fmt.Errorf("read the outcome: %w", err)
	}
	after, err := c.cpu()
	if err != nil {
		return s, err
	}
	s.CPU = after - before
	s.Memory, err = c.memory()
	return s, err
}

// cpu returns the CPU time of the proxy so far; 0 without one.
func (c *contender) cpu() (time.Duration, error) {
	if c.proxy == nil {
		return 0, nil
	}
	return c.proxy.CPU()
}

// memory returns the resident memory of the proxy in bytes; 0 without one.
func (c *contender) memory() (uint64, error) {
	if c.proxy == nil {
		return 0, nil
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", c.proxy.PID))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0, fmt.Errorf("invalid statm of a process: %q", text)
	}
	pages, err := strconv.ParseUint(fields[1], 10, 64)
	return pages * uint64(os.Getpagesize()), err
}

// profile writes a CPU profile of the userspace plane under each load.
func profile(o options, contenders []*contender) error {
	for _, c := range contenders {
		if c.name != userspace {
			continue
		}
		for _, w := range works(o) {
			seconds := max(1, int(o.time/time.Second))
			l := load{work: w, Target: c.at[w.Kind].String(), Time: time.Duration(seconds) * time.Second}
			file := filepath.Join(o.profile, fmt.Sprintf("%s-%d.pprof", w.Kind, w.Connections))
			if _, err := c.measure(l, func() error {
				text, err := c.proxy.Get(fmt.Sprintf("http://127.0.0.1:10249/debug/pprof/profile?seconds=%d", seconds))
				if err != nil {
					return fmt.Errorf("profile: %w", err)
				}
				return os.WriteFile(file, text, 0o644)
			}); err != nil {
				return err
			}
		}
	}
	return nil
}
