package web

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/handover/listen"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

// maxWait is long enough for a busy machine; no step takes a second.
const maxWait = 20 * time.Second

// serve runs a Server in a namespace and returns it, listening.
func serve(t *testing.T, ns int, s setting) *Server {
	t.Helper()
	return serveWith(t, s, ServerOptions{
		Name: "health", Listen: listen.Opener{NetNS: ns}.Listen, Log: slog.New(slog.DiscardHandler),
	})
}

func serveWith(t *testing.T, s setting, o ServerOptions) *Server {
	t.Helper()
	o.Addr, o.Handler = s.Addr, s.Handler
	server := NewServer(o)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("ended with %v", err)
		}
	})
	waitFor(t, server, func(st State) bool { return st.Serving.IsValid() })
	return server
}

func waitFor(t *testing.T, s *Server, done func(State) bool) {
	t.Helper()
	for end := time.Now().Add(maxWait); !done(s.State()); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still %+v", s.State())
		}
	}
}

// get sends a request in a namespace without an http.Client, which dials in its own goroutines.
func get(t *testing.T, ns int, at netip.AddrPort, path string) string {
	t.Helper()
	answer := ""
	kerneltest.Do(t, ns, func() error {
		c, err := net.Dial("tcp", at.String())
		if err != nil {
			answer = err.Error()
			return nil
		}
		defer func() { _ = c.Close() }()
		if _, err := io.WriteString(c, "GET "+path+" HTTP/1.0\r\n\r\n"); err != nil {
			return err
		}
		b, err := io.ReadAll(c)
		answer = string(b)
		return err
	})
	return answer
}

// With a real kernel 0.0.0.0 stands for both families, as in kube-proxy.
func TestServerInAKernel(t *testing.T) {
	ns := kerneltest.Namespace(t)
	var c counts
	serve(t, ns, setting{at("0.0.0.0:10256"), Health(well().constantly, c.add)})
	for _, addr := range []string{"127.0.0.1:10256", "[::1]:10256"} {
		got := get(t, ns, at(addr), "/livez")
		if !strings.HasPrefix(got, "HTTP/1.0 200 OK\r\n") || !strings.Contains(got, `"healthy":true`) {
			t.Errorf("%s: got %q", addr, got)
		}
	}
	if got := get(t, ns, at("127.0.0.1:10256"), "/foo"); !strings.HasPrefix(got, "HTTP/1.0 404") {
		t.Errorf("S-262: got %q", got)
	}
}

// The kernel chooses a port for port 0, and the state contains it.
func TestStateHasThePort(t *testing.T) {
	ns := kerneltest.Namespace(t)
	s := serve(t, ns, saying("127.0.0.1:0", "one"))
	if got := get(t, ns, s.State().Serving, "/"); !strings.HasSuffix(got, "one") {
		t.Errorf("got %q", got)
	}
}

// Silent clients do not prevent answers to others, and never have more connections than the limit.
func TestSilentClients(t *testing.T) {
	const most = 4
	ns := kerneltest.Namespace(t)
	var log strings.Builder
	var c counts
	s := serveWith(t, setting{at("127.0.0.1:10256"), Health(well().constantly, c.add)}, ServerOptions{
		Name: "health", Listen: listen.Opener{NetNS: ns}.Listen, Log: slog.New(slog.NewTextHandler(&log, nil)),
		MaxConns: most,
	})
	for range 5 * most {
		kerneltest.Do(t, ns, func() error {
			c, err := net.Dial("tcp", "127.0.0.1:10256")
			if err == nil {
				t.Cleanup(func() { _ = c.Close() })
			}
			return err
		})
		if got := get(t, ns, at("127.0.0.1:10256"), "/livez"); !strings.HasPrefix(got, "HTTP/1.0 200 OK\r\n") {
			t.Fatalf("got %q", got)
		}
		if n := s.conns.Len(); n > most {
			t.Fatalf("%d connections are open, want %d at most", n, most)
		}
	}
	if n := strings.Count(log.String(), "Too many clients are connected"); n != 1 {
		t.Errorf("logged %d times, want once:\n%s", n, log.String())
	}
}
