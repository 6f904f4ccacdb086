//go:build linux

package apiserver

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/pflag"

	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/test/lab"
)

// Proxy is a Sluice that runs in this process for one host of a lab.
type Proxy struct {
	t    lab.T
	stop func()

	mu    sync.Mutex
	syncs []proxy.Sync
	wake  chan struct{} // closed at every sync
	lines []string
}

// Run runs Sluice for a host until Stop or the end of t. args are added to the flags for the
// API server and the node name.
func (c *Cluster) Run(t lab.T, host *lab.Host, args ...string) *Proxy {
	t.Helper()
	kubeconfig, err := c.Kubeconfig("")
	if err != nil {
		t.Fatalf("%v", err)
	}
	return Run(t, host, append([]string{"--kubeconfig=" + kubeconfig}, args...)...)
}

// Run is Cluster.Run without the flag for the API server.
func Run(t lab.T, host *lab.Host, args ...string) *Proxy {
	t.Helper()
	cfg, err := load(append([]string{"--hostname-override=" + host.Name()}, args...))
	if err != nil {
		t.Fatalf("read the command line of Sluice: %v", err)
	}
	p := &Proxy{t: t, wake: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- app.Run(ctx, app.Options{
			Config: cfg, Kinds: app.Kinds(), Log: slog.New(slog.NewTextHandler(p, nil)), NetNS: host.NetNSFD(), Synced: p.synced,
		})
	}()
	p.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Fatalf("Sluice ended with: %v", err)
		}
	})
	t.Cleanup(p.stop)
	return p
}

func load(args []string) (*config.Config, error) {
	fs := pflag.NewFlagSet("sluice", pflag.ContinueOnError)
	flags := config.NewFlags(fs)
	// Without the flag, the test process would get another OOM score.
	if err := fs.Parse(append([]string{"--oom-score-adj=0"}, args...)); err != nil {
		return nil, err
	}
	cfg, _, err := flags.Load(config.Env{Hostname: os.Hostname, ReadFile: os.ReadFile},
		config.Options{Modes: app.Modes(app.Kinds())})
	return cfg, err
}

// Stop stops Sluice like a signal; its rules stay.
func (p *Proxy) Stop() { p.stop() }

// Syncs returns all attempts to write so far.
func (p *Proxy) Syncs() []proxy.Sync {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clip(p.syncs)
}

// First waits for the first attempt to write.
func (p *Proxy) First(ctx context.Context) (proxy.Sync, error) {
	for {
		p.mu.Lock()
		syncs, wake := p.syncs, p.wake
		p.mu.Unlock()
		if len(syncs) > 0 {
			return syncs[0], nil
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return proxy.Sync{}, fmt.Errorf("nothing was written; the log: %s", p.Log())
		}
	}
}

func (p *Proxy) synced(s proxy.Sync) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.syncs = append(p.syncs, s)
	close(p.wake)
	p.wake = make(chan struct{})
}

// Log returns the log of Sluice.
func (p *Proxy) Log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "")
}

// Write adds a line to the log.
func (p *Proxy) Write(line []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lines = append(p.lines, string(line))
	return len(line), nil
}
