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

// name is what kube-proxy's program is called. Sluice may be called so too.
const name = "kube-proxy"

const (
	defaultAddress = "127.0.0.1:10249"
	healthPort     = 10256
	answerTime     = 500 * time.Millisecond
	answerSize     = 1 << 20 // bytes of a configuration
	modeSize       = 64      // bytes of the name of a mode
	mostAsked      = 8       // listeners of a process that are asked
)

// processDoor finds processes in this network namespace that do not run the
// program of this one.
type processDoor interface {
	Named(ctx context.Context, name string) ([]process.Process, error)
	WithSocket(inode uint64) (int, error)
	Describe(pid int) process.Process
}

// listenerDoor lists who accepts TCP connections in this network namespace.
type listenerDoor interface {
	Listeners(ctx context.Context) ([]socket.Listener, error)
}

// watch notices a kube-proxy that runs on this node: by its process, and by what
// it answers, as its process may be out of sight. A process that cannot have
// CAP_NET_ADMIN changes no rules and is not one, whatever its name and answers.
type watch struct {
	processes processDoor
	listeners listenerDoor
	client    *http.Client
	address   string
}

func newWatch(o Options) *watch {
	w := &watch{
		processes: process.New(process.Options{NetNS: o.NetNS}),
		listeners: socket.New(socket.Options{NetNS: o.NetNS}),
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

// look returns the kube-proxy that runs, or else a process that may be one; nil
// if there is none. With an error there may be one.
func (w *watch) look(ctx context.Context) (*Rival, error) {
	named, err := w.processes.Named(ctx, name)
	named = slices.DeleteFunc(named, func(p process.Process) bool { return !p.Admin })
	mode, answers := w.ask(ctx, w.address)
	if len(named) == 0 && !answers {
		return nil, err
	}
	listeners, listenErr := w.listeners.Listeners(ctx)
	listeners = slices.DeleteFunc(listeners, func(l socket.Listener) bool { return l.UDP() })
	if listenErr != nil {
		err = errors.Join(err, fmt.Errorf("look for listeners of kube-proxy: %w", listenErr))
	}
	speaker := Rival{}
	if answers {
		speaker, answers = w.answering(listeners)
		speaker.Mode = mode
	}
	var maybe *Rival
	for _, p := range named {
		r := w.judge(ctx, p, listeners)
		if r.Certain {
			r.Mode = cmp.Or(r.Mode, speaker.Mode)
			return &r, nil
		}
		if maybe == nil {
			maybe = &r
		}
	}
	switch {
	case answers && (maybe == nil || speaker.PID != 0):
		return &speaker, nil
	case answers: // its sockets cannot be seen: the process of this name is the one that answers
		maybe.Mode, maybe.Certain, maybe.How = mode, true, speaker.How
	}
	return maybe, err
}

// judge says what a process of kube-proxy's name is. It is one if it listens on
// one of kube-proxy's ports, or answers as kube-proxy where it listens.
func (w *watch) judge(ctx context.Context, p process.Process, all []socket.Listener) Rival {
	r := Rival{PID: p.PID, Program: p.Program, Age: p.Age, How: "a process of this name"}
	asked := 0
	for _, l := range all {
		known := slices.Contains(w.ports(), l.At.Port())
		switch {
		case known && w.owns(p, l):
			r.Certain, r.How = true, fmt.Sprintf("it listens on port %d", l.At.Port())
			return r
		case known || !slices.Contains(p.Sockets, l.Inode):
			continue
		}
		if asked++; asked > mostAsked {
			break
		}
		at := reachable(l.At).String()
		if mode, answers := w.ask(ctx, at); answers {
			r.Certain, r.Mode, r.How = true, mode, "it answers at "+at
			return r
		}
	}
	return r
}

// owns reports whether a listener belongs to a process. If the sockets of the
// process cannot be read, every listener of root without a known process does.
func (w *watch) owns(p process.Process, l socket.Listener) bool {
	if p.Sockets != nil {
		return slices.Contains(p.Sockets, l.Inode)
	}
	pid, err := w.processes.WithSocket(l.Inode)
	return l.UID == 0 && err == nil && pid == 0
}

// ports are those on which a kube-proxy listens: for health, and for metrics.
func (w *watch) ports() []uint16 {
	ports := []uint16{healthPort}
	for _, text := range []string{w.address, defaultAddress} {
		if at, err := netip.ParseAddrPort(text); err == nil {
			ports = append(ports, at.Port())
		}
	}
	return ports
}

// reachable returns where a listener can be reached on this host.
func reachable(at netip.AddrPort) netip.AddrPort {
	if !at.Addr().IsUnspecified() {
		return at
	}
	if at.Addr().Is4() {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), at.Port())
	}
	return netip.AddrPortFrom(netip.IPv6Loopback(), at.Port())
}

// answering says who answers as kube-proxy at its address; false if that cannot
// be a kube-proxy: the listener belongs to another user than root, or to a process
// without CAP_NET_ADMIN.
func (w *watch) answering(all []socket.Listener) (Rival, bool) {
	r := Rival{Certain: true, How: "it answers at " + w.address}
	for _, l := range all {
		if !w.serves(l.At) {
			continue
		}
		pid, err := w.processes.WithSocket(l.Inode)
		if err != nil || pid == 0 { // out of sight
			if l.UID != 0 {
				return Rival{}, false
			}
			continue
		}
		p := w.processes.Describe(pid)
		if !p.Admin {
			return Rival{}, false
		}
		r.PID, r.Program, r.Age = pid, p.Program, p.Age
	}
	return r, true
}

// serves reports whether a listener is at kube-proxy's address.
func (w *watch) serves(at netip.AddrPort) bool {
	want, err := netip.ParseAddrPort(w.address)
	return err == nil && at.Port() == want.Port() && (at.Addr() == want.Addr() || at.Addr().IsUnspecified())
}

// ask says whether a kube-proxy serves its diagnostics at an address, and which
// mode it is in.
func (w *watch) ask(ctx context.Context, at string) (mode string, answers bool) {
	config, err := w.get(ctx, at, "/configz", answerSize)
	if err != nil || !isKubeProxy(config) {
		return "", false
	}
	said, err := w.get(ctx, at, "/proxyMode", modeSize)
	if err != nil {
		return "", true
	}
	return text.Line(strings.TrimSpace(string(said))), true
}

// isKubeProxy says whether a configuration is that of a kube-proxy.
func isKubeProxy(config []byte) bool {
	var parts map[string]json.RawMessage
	return json.Unmarshal(config, &parts) == nil && parts["kubeproxy.config.k8s.io"] != nil
}

// get returns an answer, unless it is Sluice's: see ServerHeader.
func (w *watch) get(ctx context.Context, at, path string, most int64) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+path, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", at, err)
	}
	answer, err := w.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", at, err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK || strings.HasPrefix(answer.Header.Get("Server"), ServerHeader) {
		return nil, fmt.Errorf("ask %s: no kube-proxy answered", at)
	}
	return io.ReadAll(io.LimitReader(answer.Body, most))
}
