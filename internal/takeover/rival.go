package takeover

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/process"
)

// name is what kube-proxy's program is called. Sluice may be called so too.
const name = "kube-proxy"

const (
	defaultAddress = "127.0.0.1:10249"
	answerTime     = 500 * time.Millisecond
	answerSize     = 1 << 20 // bytes of a configuration
	modeSize       = 64      // bytes of the name of a mode
)

// processDoor finds processes in this network namespace that do not run the
// program of this one.
type processDoor interface {
	Named(ctx context.Context, name string) ([]int, error)
}

// watch notices a kube-proxy that runs on this node: by its process, and by what
// it answers, as its process may be out of sight.
type watch struct {
	processes processDoor
	client    *http.Client
	address   string
}

func newWatch(o Options) *watch {
	w := &watch{
		processes: process.New(process.Options{NetNS: o.NetNS}),
		address:   o.Address,
		client: &http.Client{
			Timeout:   answerTime,
			Transport: &http.Transport{DisableKeepAlives: true, DialContext: o.Dial},
		},
	}
	if w.address == "" {
		w.address = defaultAddress
	}
	return w
}

// look returns the kube-proxy that runs; nil if there is none. With an error
// there may be one.
func (w *watch) look(ctx context.Context) (*Rival, error) {
	pids, err := w.processes.Named(ctx, name)
	mode, answers := w.ask(ctx)
	switch {
	case len(pids) > 0:
		return &Rival{PID: pids[0], Mode: mode, How: "a process of this name"}, nil
	case answers:
		return &Rival{Mode: mode, How: "it answers at " + w.address}, nil
	}
	return nil, err
}

// ask says whether a kube-proxy serves its diagnostics, and which mode it is in.
func (w *watch) ask(ctx context.Context) (mode string, answers bool) {
	config, err := w.get(ctx, "/configz", answerSize)
	if err != nil || !isKubeProxy(config) {
		return "", false
	}
	text, err := w.get(ctx, "/proxyMode", modeSize)
	if err != nil {
		return "", true
	}
	return strings.TrimSpace(string(text)), true
}

// isKubeProxy says whether a configuration is that of a kube-proxy.
func isKubeProxy(config []byte) bool {
	var parts map[string]json.RawMessage
	return json.Unmarshal(config, &parts) == nil && parts["kubeproxy.config.k8s.io"] != nil
}

// get returns an answer, unless it is Sluice's: see ServerHeader.
func (w *watch) get(ctx context.Context, path string, most int64) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+w.address+path, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", w.address, err)
	}
	answer, err := w.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", w.address, err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK || strings.HasPrefix(answer.Header.Get("Server"), ServerHeader) {
		return nil, fmt.Errorf("ask %s: no kube-proxy answered", w.address)
	}
	return io.ReadAll(io.LimitReader(answer.Body, most))
}
