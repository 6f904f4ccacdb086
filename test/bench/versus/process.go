//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// process is a proxy that runs on a node.
type process struct {
	host  *lab.Host
	pid   int
	began time.Time
	log   *logBuffer
	http  *http.Client
	ended chan struct{} // closed when it has ended
	err   error         // of that
}

// startProcess starts a proxy on a host.
func startProcess(host *lab.Host, cmd *exec.Cmd) (*process, error) {
	p := &process{host: host, log: &logBuffer{}, ended: make(chan struct{})}
	p.http = &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{
		DisableCompression: true, // which costs the proxy memory
		DialContext: func(_ context.Context, network, address string) (conn net.Conn, err error) {
			return conn, errors.Join(host.Do(func() error {
				conn, err = net.DialTimeout(network, address, time.Second)
				return err
			}))
		},
	}}
	cmd.Stdout, cmd.Stderr = p.log, p.log
	cmd.WaitDelay = time.Second // a child that outlives the proxy holds both open
	p.began = time.Now()
	wait, err := host.Start(cmd)
	if err != nil {
		return nil, err
	}
	p.pid = cmd.Process.Pid
	go func() {
		p.err = wait()
		close(p.ended)
	}()
	return p, nil
}

// stop ends the proxy; its rules stay.
func (p *process) stop() error {
	if err := syscall.Kill(p.pid, syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop the proxy: %w", err)
	}
	p.http.CloseIdleConnections()
	select {
	case <-p.ended:
		return nil // kube-proxy ends by the signal, Sluice with 0
	case <-time.After(30 * time.Second):
		return p.trouble(errors.New("it still runs 30s after SIGTERM"))
	}
}

// wait tries until it succeeds, for no longer than limit. What is what is waited
// for.
func (p *process) wait(limit time.Duration, what string, try func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-p.ended:
			return p.trouble(fmt.Errorf("wait for %s: the proxy has ended: %w", what, cmpErr(p.err)))
		default:
		}
		if time.Now().After(deadline) {
			return p.trouble(late{what: what, limit: limit, last: err})
		}
		time.Sleep(pause)
	}
}

// pause is between two attempts: short beside what is measured, and long enough
// to leave the processor to the proxy.
const pause = 300 * time.Microsecond

// late is that something did not happen in time.
type late struct {
	what  string
	limit time.Duration
	last  error
}

func (l late) Error() string { return fmt.Sprintf("%s: not within %v: %v", l.what, l.limit, l.last) }

func cmpErr(err error) error {
	if err == nil {
		return errors.New("without an error")
	}
	return err
}

// trouble adds what the proxy said last.
func (p *process) trouble(err error) error {
	text := p.log.String()
	if cut := len(text) - 2000; cut > 0 {
		text = "..." + text[cut:]
	}
	return fmt.Errorf("%w; the proxy said: %s", err, strings.TrimSpace(text))
}

// get asks the proxy's metrics server.
func (p *process) get(path string) ([]byte, error) {
	response, err := p.http.Get("http://" + metricsAddress + path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("get %s: %s", path, response.Status)
	}
	return body, err
}

// verbosity sets how much the proxy logs, from now on.
func (p *process) verbosity(level string) error {
	request, err := http.NewRequest(http.MethodPut, "http://"+metricsAddress+"/debug/flags/v", strings.NewReader(level))
	if err != nil {
		return err
	}
	response, err := p.http.Do(request)
	if err != nil {
		return fmt.Errorf("set the verbosity: %w", err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("set the verbosity: %s", response.Status)
	}
	return nil
}

// synced is when everything was written for the first time, as the proxy's own
// metrics tell; both have this one.
func (p *process) synced(limit time.Duration) (took time.Duration, err error) {
	err = p.wait(limit, "everything written", func() error {
		m, err := p.metrics()
		if err != nil {
			return err
		}
		at := m.max("kubeproxy_sync_proxy_rules_last_timestamp_seconds")
		if at == 0 {
			time.Sleep(10 * time.Millisecond) // asking costs the proxy something
			return errors.New("no sync has ended yet")
		}
		took = time.Duration((at - float64(p.began.UnixNano())/1e9) * 1e9)
		return nil
	})
	return took, err
}

func (p *process) metrics() (metrics, error) {
	text, err := p.get("/metrics")
	if err != nil {
		return metrics{}, err
	}
	return readMetrics(text)
}

// build makes the program Sluice.
func build(dir string) (string, error) {
	path := dir + "/sluice"
	cmd := exec.Command("go", "build", "-o", path, "github.com/sluice-proxy/sluice/cmd/sluice")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build sluice: %w: %s", err, out)
	}
	return path, nil
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
