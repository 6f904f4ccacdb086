// Package listen opens TCP ports, in this or another network namespace.
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

	"github.com/sluice-proxy/sluice/internal/linux/netns"
)

// Opener opens ports in one network namespace.
type Opener struct {
	NetNS int // file descriptor of the network namespace; 0: the current one
}

// Listen opens a TCP port. Network is "tcp4" or "tcp6" for one family; "tcp" with 0.0.0.0 or [::] means all addresses,
// as in net.Listen and kube-proxy. The listener stays in its namespace after the descriptor is closed.
func (d Opener) Listen(ctx context.Context, network string, at netip.AddrPort) (net.Listener, error) {
	var l net.Listener
	var config net.ListenConfig
	config.SetMultipathTCP(false) // which the net package switches on: it costs a second socket for each listener
	err := netns.Do(d.NetNS, func() (err error) {
		l, err = config.Listen(ctx, network, at.String())
		return err
	})
	return l, err
}

// Dial connects to a numeric address and port.
func (d Opener) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	var c net.Conn
	err := netns.Do(d.NetNS, func() (err error) {
		c, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return c, err
}

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

// Listen opens a port as Opener.Listen does, or adopts the listener of the previous run with its waiting clients.
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

// Run closes the ports that no server has adopted after adoptTime, or when the context ends, and returns.
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
