package listen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"
)

// Ports opens TCP ports like an Opener, and passes the open ones to the next run of this
// program, so that no client is refused meanwhile. It is safe for concurrent use.
type Ports struct {
	opener Opener

	mu        sync.Mutex
	open      map[*port]bool
	inherited map[key]*os.File // of the previous run, not adopted yet
}

// key identifies a port by the arguments of Listen.
type key struct {
	network string
	at      netip.AddrPort
}

const filePrefix = "listen "

func (p key) String() string { return filePrefix + p.network + " " + p.at.String() }

// parseKey parses the result of String.
func parseKey(name string) (key, bool) {
	f := strings.Fields(name)
	if len(f) != 3 || f[0]+" " != filePrefix {
		return key{}, false
	}
	at, err := netip.ParseAddrPort(f[2])
	return key{f[1], at}, err == nil
}

// overlaps reports whether ports cannot be open for both keys at the same time because of
// their addresses.
func (p key) overlaps(q key) bool {
	a, b := p.at.Addr(), q.at.Addr()
	return p.at.Port() == q.at.Port() && (a == b || a.IsUnspecified() || b.IsUnspecified())
}

// port is an open listener of Ports.
type port struct {
	*net.TCPListener
	key   key
	ports *Ports
}

// Close implements net.Listener.
func (p *port) Close() error {
	p.ports.mu.Lock()
	delete(p.ports.open, p)
	p.ports.mu.Unlock()
	return p.TCPListener.Close()
}

// NewPorts returns Ports that adopt the listeners among the files of the previous run.
func NewPorts(d Opener, files map[string]*os.File) *Ports {
	p := &Ports{opener: d, open: map[*port]bool{}, inherited: map[key]*os.File{}}
	for name, f := range files {
		if at, ok := parseKey(name); ok {
			p.inherited[at] = f
		}
	}
	return p
}

// Listen opens a port as Opener.Listen does. It adopts the listener of the previous run,
// if there is one, with the clients that connected since.
func (p *Ports) Listen(ctx context.Context, network string, at netip.AddrPort) (net.Listener, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	want := key{network, at}
	l, err := p.adopt(want)
	if l == nil && err == nil {
		l, err = p.opener.Listen(ctx, network, at)
	}
	if err != nil {
		return nil, err
	}
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		return nil, errors.Join(fmt.Errorf("listen on %s: %T is not a TCP listener", at, l), l.Close())
	}
	opened := &port{tcp, want, p}
	p.open[opened] = true
	return opened, nil
}

// adopt returns the listener that the previous run had for a key; nil if there is none.
// It closes inherited listeners that would prevent a new one.
func (p *Ports) adopt(want key) (net.Listener, error) {
	if f := p.inherited[want]; f != nil {
		delete(p.inherited, want)
		l, err := net.FileListener(f) // it has a descriptor of its own
		if err != nil {
			err = fmt.Errorf("listen on %s: adopt the open port: %w", want.at, err)
		}
		return l, errors.Join(err, f.Close())
	}
	for at, f := range p.inherited {
		if at.overlaps(want) {
			_ = f.Close() // a listener has nothing to flush
			delete(p.inherited, at)
		}
	}
	return nil, nil
}

// Files returns the open ports as files to pass to the next run, by name. The caller
// closes them. The ports stay open in the next run when this one closes its listeners.
func (p *Ports) Files() (map[string]*os.File, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	files := map[string]*os.File{}
	for l := range p.open {
		f, err := l.File()
		if err != nil {
			for _, f := range files {
				_ = f.Close()
			}
			return nil, fmt.Errorf("hand over the port %s: %w", l.key.at, err)
		}
		files[l.key.String()] = f
	}
	return files, nil
}

// adoptTime is how long ports of the previous run stay open for Listen. Servers open
// their ports as soon as they run.
const adoptTime = 5 * time.Second

// Run closes the ports of the previous run that no server has adopted after adoptTime, or
// when the context ends, and returns.
func (p *Ports) Run(ctx context.Context) error {
	timer := time.NewTimer(adoptTime)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for at, f := range p.inherited {
		_ = f.Close() // a listener has nothing to flush
		delete(p.inherited, at)
	}
	return nil
}
