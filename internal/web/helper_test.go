package web

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// ask sends a request to a handler: "GET /path", then headers as "Name: value".
func ask(t *testing.T, h http.Handler, request, body string, headers ...string) *http.Response {
	t.Helper()
	method, path, _ := strings.Cut(request, " ")
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	for _, line := range headers {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Add(name, value)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

// bodyOf reads the body of an answer.
func bodyOf(t *testing.T, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatalf("read body: %v", err)
	}
	return string(b)
}

// network is a host with the address 192.0.2.1 and TCP ports, in memory. Like
// Linux it refuses a port that is open on the same address, and one that is
// open on every address.
type network struct {
	mu   sync.Mutex
	open map[netip.AddrPort]*port
}

type port struct {
	net    *network
	at     netip.AddrPort
	conns  chan net.Conn
	closed chan struct{}
	broken chan error
}

func newNetwork() *network { return &network{open: map[netip.AddrPort]*port{}} }

func (n *network) Listen(_ context.Context, network string, at netip.AddrPort) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	fail := func(err error) (net.Listener, error) {
		return nil, &net.OpError{Op: "listen", Net: network, Addr: net.TCPAddrFromAddrPort(at), Err: err}
	}
	if a := at.Addr(); !a.IsUnspecified() && !a.IsLoopback() && a != netip.AddrFrom4([4]byte{192, 0, 2, 1}) {
		return fail(syscall.EADDRNOTAVAIL)
	}
	for other := range n.open {
		if other.Port() == at.Port() && (other == at || other.Addr().IsUnspecified() || at.Addr().IsUnspecified()) {
			return fail(syscall.EADDRINUSE)
		}
	}
	p := &port{n, at, make(chan net.Conn), make(chan struct{}), make(chan error, 1)}
	n.open[at] = p
	return p, nil
}

func (p *port) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case err := <-p.broken:
		return nil, err
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *port) Close() error {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	if p.net.open[p.at] == p {
		delete(p.net.open, p.at)
		close(p.closed)
	}
	return nil
}

func (p *port) Addr() net.Addr { return net.TCPAddrFromAddrPort(p.at) }

// find returns the port that a client of an address reaches.
func (n *network) find(at netip.AddrPort) *port {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p := n.open[at]; p != nil {
		return p
	}
	return n.open[netip.AddrPortFrom(netip.IPv4Unspecified(), at.Port())]
}

func (n *network) dial(ctx context.Context, at string) (net.Conn, error) {
	p := n.find(netip.MustParseAddrPort(at))
	if p == nil {
		return nil, syscall.ECONNREFUSED
	}
	here, there := net.Pipe()
	select {
	case p.conns <- there:
		return here, nil
	case <-p.closed:
		return nil, syscall.ECONNREFUSED
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// get returns what is answered at an address, or "refused".
func (n *network) get(t *testing.T, at string) string {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, at string) (net.Conn, error) { return n.dial(ctx, at) },
	}}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at+"/", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Do(r)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return "refused"
	}
	if err != nil {
		t.Fatalf("GET %s: %v", at, err)
	}
	defer func() { _ = answer.Body.Close() }()
	return bodyOf(t, answer)
}
