//go:build linux

package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// program is the program, running on node A.
type program struct {
	cmd   *exec.Cmd
	wait  func() error
	began time.Time
	log   *logBuffer
}

// launch starts the program.
func (b *clusterBench) launch() (*program, error) {
	kubeconfig, err := b.Kubeconfig("")
	if err != nil {
		return nil, err
	}
	p := &program{log: &logBuffer{}}
	p.cmd = exec.Command(b.program, "--kubeconfig="+kubeconfig, "--hostname-override=node-a",
		"--cluster-cidr=10.0.0.0/8", "--healthz-bind-address=", "--metrics-bind-address=")
	p.cmd.Stderr = p.log
	p.began = time.Now()
	p.wait, err = b.lab.NodeA.Start(p.cmd)
	return p, err
}

// end stops the program; the rules stay.
func (p *program) end() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return p.wait()
}

// again starts the program over what it left, and waits until it says that it
// compared everything.
func (b *clusterBench) again() (time.Duration, error) {
	p, err := b.launch()
	if err != nil {
		return 0, err
	}
	full := regexp.MustCompile(`msg=Synced .*steps=(\d+).*cause=start`)
	for time.Since(p.began) < 5*time.Minute {
		if m := full.FindStringSubmatch(p.log.String()); m != nil {
			took := time.Since(p.began)
			if m[1] != "0" {
				fmt.Fprintf(os.Stderr, "the second start took %s steps\n", m[1])
			}
			return took, p.end()
		}
		time.Sleep(time.Millisecond)
	}
	return 0, fmt.Errorf("the second start did not end: %s", p.log.String())
}

// cpu is the time the program has run on processors.
func (p *program) cpu() (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	return cpuTime(string(stat))
}

// cpuTime reads user and system time from a /proc/PID/stat, where they are in
// ticks of 10 ms.
func cpuTime(stat string) (time.Duration, error) {
	words := strings.Fields(stat[strings.LastIndex(stat, ")")+1:]) // the name may hold anything
	if len(words) < 13 {
		return 0, fmt.Errorf("not the stat of a process: %q", stat)
	}
	var sum int64
	for _, word := range words[11:13] {
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read processor time: %w", err)
		}
		sum += n
	}
	return time.Duration(sum) * 10 * time.Millisecond, nil
}

// logBuffer keeps what is written to it.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func printWhole(w io.Writer, o options, r whole) error {
	_, err := fmt.Fprintf(w, `| %d Services of 3 endpoints, real API server | |
|---|---:|
| process start to every probed Service reachable, ms | %s |
| second start, nothing changed: to "nothing to do", ms | %s |
| API write to first new connection, p50, ms | %s |
| — p99, ms | %s |
| CPU per endpoint change, ms | %.2f |
| peak RSS, MB | %.1f |
| connect() direct, p50, µs | %s |
| connect() through a Service, p50, µs | %s |
| — ratio | %.2f |
`, o.cluster, millis(float64(r.Start)), millis(float64(r.Again)), millis(float64(r.P50)), millis(float64(r.P99)),
		float64(r.CPU)/1e6, float64(r.PeakRSS)/(1<<20),
		micros(float64(r.Direct)), micros(float64(r.Via)), float64(r.Via)/float64(r.Direct))
	return err
}
