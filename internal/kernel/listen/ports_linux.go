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

// Ports opens TCP ports like a Door, and passes those that are open to the next
// run of this program, so that no client is refused meanwhile. It is safe for
// concurrent use.
type Ports struct {
	door Door

	mu        sync.Mutex
	open      map[*port]bool
	inherited map[place]*os.File // from the run before, not listened on yet
}

// place is where a port was asked for.
type place struct {
	network string
	at      netip.AddrPort
}

const filePrefix = "listen "

func (p place) String() string { return filePrefix + p.network + " " + p.at.String() }

// parsePlace reads what String wrote.
func parsePlace(name string) (place, bool) {
	f := strings.Fields(name)
	if len(f) != 3 || f[0]+" " != filePrefix {
		return place{}, false
	}
	at, err := netip.ParseAddrPort(f[2])
	return place{f[1], at}, err == nil
}

// overlaps reports whether two places cannot be open at the same time, as far as
// their addresses tell.
func (p place) overlaps(q place) bool {
	a, b := p.at.Addr(), q.at.Addr()
	return p.at.Port() == q.at.Port() && (a == b || a.IsUnspecified() || b.IsUnspecified())
}

// port is a listener that Ports knows of.
type port struct {
	*net.TCPListener
	place place
	ports *Ports
}

// Close implements net.Listener.
func (p *port) Close() error {
	p.ports.mu.Lock()
	delete(p.ports.open, p)
	p.ports.mu.Unlock()
	return p.TCPListener.Close()
}

// NewPorts returns Ports that take over the listeners among the files of the run
// before.
func NewPorts(d Door, files map[string]*os.File) *Ports {
	p := &Ports{door: d, open: map[*port]bool{}, inherited: map[place]*os.File{}}
	for name, f := range files {
		if at, ok := parsePlace(name); ok {
			p.inherited[at] = f
		}
	}
	return p
}

// Listen opens a port as Door.Listen does. If the run before had it open, clients
// that connected since are accepted.
func (p *Ports) Listen(ctx context.Context, network string, at netip.AddrPort) (net.Listener, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	want := place{network, at}
	l, err := p.adopt(want)
	if l == nil && err == nil {
		l, err = p.door.Listen(ctx, network, at)
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

// adopt returns the listener that the run before had at a place; nil if there is
// none. It closes those that would prevent a new one.
func (p *Ports) adopt(want place) (net.Listener, error) {
	if f := p.inherited[want]; f != nil {
		delete(p.inherited, want)
		l, err := net.FileListener(f) // it has a descriptor of its own
		if err != nil {
			err = fmt.Errorf("listen on %s: take over the open port: %w", want.at, err)
		}
		return l, errors.Join(err, f.Close())
	}
	for at, f := range p.inherited {
		if at.overlaps(want) {
			_ = f.Close() // it was only listened on
			delete(p.inherited, at)
		}
	}
	return nil, nil
}

// Files returns the open ports as files to pass to the next run, by name. The
// caller closes them. They stay open there although the listeners are closed.
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
			return nil, fmt.Errorf("hand over the port %s: %w", l.place.at, err)
		}
		files[l.place.String()] = f
	}
	return files, nil
}

// adoptTime is how long ports of the run before stay open for Listen. What needs
// them asks for them as soon as it runs.
const adoptTime = 5 * time.Second

// Run closes the ports of the run before that are not needed any more. It returns
// when that is done or the context ends.
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
		_ = f.Close() // it was only listened on
		delete(p.inherited, at)
	}
	return nil
}
