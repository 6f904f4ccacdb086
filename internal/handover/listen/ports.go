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
	inherited map[string]*os.File // of the previous run by the name of the port, not adopted yet
}

// filePrefix begins the names of ports.
const filePrefix = "listen "

// port is an open listener of Ports.
type port struct {
	*net.TCPListener
	name  string
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
	p := &Ports{opener: d, open: map[*port]bool{}, inherited: map[string]*os.File{}}
	for name, f := range files {
		if strings.HasPrefix(name, filePrefix) {
			p.inherited[name] = f
		}
	}
	return p
}

// Listen opens a port as Opener.Listen does. It adopts the listener of the previous run,
// if there is one, with the clients that connected since.
func (p *Ports) Listen(ctx context.Context, network string, at netip.AddrPort) (net.Listener, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	name := filePrefix + network + " " + at.String()
	l, err := p.adopt(name)
	if l == nil && err == nil {
		p.free(at.Port())
		l, err = p.opener.Listen(ctx, network, at)
	}
	if err != nil {
		return nil, err
	}
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%s: %T is not a TCP listener", name, l), l.Close())
	}
	opened := &port{tcp, name, p}
	p.open[opened] = true
	return opened, nil
}

// adopt returns the listener that the previous run had for a port; nil if there is none.
func (p *Ports) adopt(name string) (net.Listener, error) {
	f := p.inherited[name]
	if f == nil {
		return nil, nil
	}
	delete(p.inherited, name)
	l, err := net.FileListener(f) // it has a descriptor of its own
	if err != nil {
		err = fmt.Errorf("%s: adopt the open port: %w", name, err)
	}
	return l, errors.Join(err, f.Close())
}

// free closes the inherited listeners with the number of a port, which may prevent a new one.
func (p *Ports) free(number uint16) {
	for name, f := range p.inherited {
		if strings.HasSuffix(name, fmt.Sprintf(":%d", number)) {
			_ = f.Close() // a listener has nothing to flush
			delete(p.inherited, name)
		}
	}
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
			return nil, fmt.Errorf("hand over the port %s: %w", l.name, err)
		}
		files[l.name] = f
	}
	return files, nil
}

// adoptTime is how long ports of the previous run stay open for Listen. Servers open their ports as soon as they run.
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
