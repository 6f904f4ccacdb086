package takeover

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/process"
	"github.com/sluice-proxy/sluice/internal/kernel/socket"
	"github.com/sluice-proxy/sluice/internal/text"
)

// name is the name of kube-proxy's program, which Sluice may have, too.
const name = "kube-proxy"

const (
	defaultAddress = "127.0.0.1:10249"
	healthPort     = 10256
	answerTimeout  = 500 * time.Millisecond
	maxConfig      = 1 << 20 // bytes of a configuration
	maxMode        = 64      // bytes of the name of a mode
	maxAsked       = 8       // listeners of one process
)

// processLister lists processes in this network namespace that do not run the program of
// this one.
type processLister interface {
	Named(ctx context.Context, name string) ([]process.Process, error)
	WithSocket(inode uint64) (int, error)
	Describe(pid int) process.Process
}

// listenerLister lists the listeners in this network namespace.
type listenerLister interface {
	Listeners(ctx context.Context) ([]socket.Listener, error)
}

// detector detects a kube-proxy that runs on this node: by its process, and by its
// answers, as its process may be in another PID namespace. A process that cannot have
// CAP_NET_ADMIN changes no rules and is no kube-proxy, whatever its name and answers.
type detector struct {
	processes processLister
	listeners listenerLister
	client    *http.Client
	address   string // of kube-proxy's diagnostics
}

func newDetector(o Options) *detector {
	return &detector{
		processes: process.New(process.Options{NetNS: o.NetNS}),
		listeners: socket.New(o.NetNS),
		address:   cmp.Or(o.Address, defaultAddress),
		client: &http.Client{
			Timeout:   answerTimeout,
			Transport: &http.Transport{DisableKeepAlives: true, DialContext: o.Dial},
		},
	}
}

// detect returns the kube-proxy that runs, or else a process that may be one; nil if
// there is neither. With an error there may be one.
func (d *detector) detect(ctx context.Context) (*KubeProxy, error) {
	named, err := d.processes.Named(ctx, name)
	named = slices.DeleteFunc(named, func(p process.Process) bool { return !p.Admin })
	mode, answers := d.ask(ctx, d.address)
	if len(named) == 0 && !answers {
		return nil, err
	}
	listeners, listenErr := d.listeners.Listeners(ctx)
	listeners = slices.DeleteFunc(listeners, func(l socket.Listener) bool { return l.UDP() })
	if listenErr != nil {
		err = errors.Join(err, fmt.Errorf("look for listeners of kube-proxy: %w", listenErr))
	}
	server := KubeProxy{}
	if answers {
		server, answers = d.server(listeners)
		server.Mode = mode
	}
	var unconfirmed *KubeProxy
	for _, p := range named {
		found := d.examine(ctx, p, listeners)
		if found.Confirmed {
			found.Mode = cmp.Or(found.Mode, server.Mode)
			return &found, nil
		}
		if unconfirmed == nil {
			unconfirmed = &found
		}
	}
	switch {
	case answers && (unconfirmed == nil || server.PID != 0):
		return &server, nil
	case answers: // its sockets cannot be read: the process of this name is the one that answers
		unconfirmed.Mode, unconfirmed.Confirmed, unconfirmed.Evidence = mode, true, server.Evidence
	}
	return unconfirmed, err
}

// examine returns what is known about a process of kube-proxy's name. It is a kube-proxy
// if it listens on one of kube-proxy's ports, or answers as one where it listens.
func (d *detector) examine(ctx context.Context, p process.Process, all []socket.Listener) KubeProxy {
	r := KubeProxy{PID: p.PID, Program: p.Program, Age: p.Age, Evidence: "a process of this name"}
	asked := 0
	for _, l := range all {
		known := slices.Contains(d.ports(), l.At.Port())
		switch {
		case known && d.owns(p, l):
			r.Confirmed, r.Evidence = true, fmt.Sprintf("it listens on port %d", l.At.Port())
			return r
		case known || !slices.Contains(p.Sockets, l.Inode):
			continue
		}
		if asked++; asked > maxAsked {
			break
		}
		at := reachable(l.At).String()
		if mode, answers := d.ask(ctx, at); answers {
			r.Confirmed, r.Mode, r.Evidence = true, mode, "it answers at "+at
			return r
		}
	}
	return r
}

// owns reports whether a listener belongs to a process. If the sockets of the
// process cannot be read, every listener of root without a known process does.
func (d *detector) owns(p process.Process, l socket.Listener) bool {
	if p.Sockets != nil {
		return slices.Contains(p.Sockets, l.Inode)
	}
	pid, err := d.processes.WithSocket(l.Inode)
	return l.UID == 0 && err == nil && pid == 0
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

// reachable returns an address of a listener that this host can connect to.
func reachable(at netip.AddrPort) netip.AddrPort {
	if !at.Addr().IsUnspecified() {
		return at
	}
	if at.Addr().Is4() {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), at.Port())
	}
	return netip.AddrPortFrom(netip.IPv6Loopback(), at.Port())
}

// server returns the process that answers as kube-proxy at its address; false if it
// cannot be a kube-proxy: the listener belongs to another user than root, or to a process
// without CAP_NET_ADMIN.
func (d *detector) server(all []socket.Listener) (KubeProxy, bool) {
	r := KubeProxy{Confirmed: true, Evidence: "it answers at " + d.address}
	for _, l := range all {
		if !d.serves(l.At) {
			continue
		}
		pid, err := d.processes.WithSocket(l.Inode)
		if err != nil || pid == 0 { // in another PID namespace
			if l.UID != 0 {
				return KubeProxy{}, false
			}
			continue
		}
		p := d.processes.Describe(pid)
		if !p.Admin {
			return KubeProxy{}, false
		}
		r.PID, r.Program, r.Age = pid, p.Program, p.Age
	}
	return r, true
}

// serves reports whether a listener is at kube-proxy's address.
func (d *detector) serves(at netip.AddrPort) bool {
	want, err := netip.ParseAddrPort(d.address)
	return err == nil && at.Port() == want.Port() && (at.Addr() == want.Addr() || at.Addr().IsUnspecified())
}

// ask reports whether a kube-proxy serves its diagnostics at an address, and its mode.
func (d *detector) ask(ctx context.Context, at string) (mode string, answers bool) {
	config, err := d.get(ctx, at, "/configz", maxConfig)
	if err != nil || !isKubeProxy(config) {
		return "", false
	}
	answer, err := d.get(ctx, at, "/proxyMode", maxMode)
	if err != nil {
		return "", true
	}
	return text.Line(strings.TrimSpace(string(answer))), true
}

// isKubeProxy reports whether a configuration is that of a kube-proxy.
func isKubeProxy(config []byte) bool {
	var parts map[string]json.RawMessage
	return json.Unmarshal(config, &parts) == nil && parts["kubeproxy.config.k8s.io"] != nil
}

// get returns an answer. An answer of Sluice is an error: see ServerHeader.
func (d *detector) get(ctx context.Context, at, path string, most int64) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+path, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", at, err)
	}
	answer, err := d.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", at, err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK || strings.HasPrefix(answer.Header.Get("Server"), ServerHeader) {
		return nil, fmt.Errorf("ask %s: no kube-proxy answered", at)
	}
	return io.ReadAll(io.LimitReader(answer.Body, most))
}
