package takeover

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/sockdiag"
	"github.com/sluice-proxy/sluice/internal/process"
	"github.com/sluice-proxy/sluice/internal/text"
)

// name is the name of kube-proxy's program, which Sluice may have, too.
const name = "kube-proxy"

const (
	defaultAddress = "127.0.0.1:10249"
	healthPort     = 10256
	answerTimeout  = 500 * time.Millisecond
	maxConfig      = 1 << 20 // bytes of a configuration
)

// processes finds the process that has a socket; 0 if it is in another PID namespace, or may not be read.
type processes interface {
	WithSocket(inode uint64) (int, error)
	Describe(pid int) process.Process
}

// listenerLister lists the listeners in this network namespace.
type listenerLister interface {
	Listeners(ctx context.Context) ([]sockdiag.Listener, error)
}

// detector detects a kube-proxy that runs on this node: it listens at kube-proxy's ports, and has its name or
// answers as kube-proxy does. A process that cannot have CAP_NET_ADMIN changes no rules and is no kube-proxy.
type detector struct {
	processes processes
	listeners listenerLister
	client    *http.Client
	address   string // of kube-proxy's diagnostics
}

func newDetector(o Options) *detector {
	return &detector{
		processes: process.New(),
		listeners: sockdiag.Node{NetNS: o.NetNS},
		address:   cmp.Or(o.Address, defaultAddress),
		client: &http.Client{
			Timeout:   answerTimeout,
			Transport: &http.Transport{DisableKeepAlives: true, DialContext: o.Dial},
		},
	}
}

// detect returns the kube-proxy that runs; nil if there is none. With an error there may be one.
func (d *detector) detect(ctx context.Context) (*KubeProxy, error) {
	mode, answers := d.ask(ctx)
	all, err := d.listeners.Listeners(ctx)
	if err != nil && answers {
		return &KubeProxy{Mode: mode, Evidence: "it answers at " + d.address}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for listeners of kube-proxy: %w", err)
	}
	for _, l := range all {
		if l.UDP() || !slices.Contains(d.ports(), l.At.Port()) {
			continue
		}
		p := d.holder(l)
		switch {
		case !p.Admin:
		case slices.Contains(p.Names, name) && !p.Self:
			return &KubeProxy{p.PID, p.Program, mode, fmt.Sprintf("it listens on port %d", l.At.Port())}, nil
		case answers && d.serves(l.At):
			return &KubeProxy{p.PID, p.Program, mode, "it answers at " + d.address}, nil
		}
	}
	return nil, nil
}

// holder returns the process that has a listener. One that cannot be seen may change rules if it is root's.
func (d *detector) holder(l sockdiag.Listener) process.Process {
	pid, err := d.processes.WithSocket(l.Inode)
	if err != nil || pid == 0 {
		return process.Process{Admin: l.UID == 0}
	}
	return d.processes.Describe(pid)
}

// ports returns the ports on which a kube-proxy serves health and metrics.
func (d *detector) ports() []uint16 {
	ports := []uint16{healthPort}
	for _, text := range []string{d.address, defaultAddress} {
		if at, err := netip.ParseAddrPort(text); err == nil {
			ports = append(ports, at.Port())
		}
	}
	return ports
}

// serves reports whether a listener is at kube-proxy's address.
func (d *detector) serves(at netip.AddrPort) bool {
	want, err := netip.ParseAddrPort(d.address)
	return err == nil && at.Port() == want.Port() && (at.Addr() == want.Addr() || at.Addr().IsUnspecified())
}

// ask reports whether a kube-proxy serves its diagnostics, and its mode. Sluice does not count: see ServerHeader.
func (d *detector) ask(ctx context.Context) (mode string, answers bool) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.address+"/configz", http.NoBody)
	if err != nil {
		return "", false
	}
	answer, err := d.client.Do(request)
	if err != nil {
		return "", false
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK || strings.HasPrefix(answer.Header.Get("Server"), ServerHeader) {
		return "", false
	}
	var parts map[string]struct{ Mode string }
	err = json.NewDecoder(io.LimitReader(answer.Body, maxConfig)).Decode(&parts)
	config, is := parts["kubeproxy.config.k8s.io"]
	return text.Line(config.Mode), err == nil && is
}
