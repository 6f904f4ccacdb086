package web

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/testing/listentest"
)

// host has the address 192.0.2.1.
func host() *listentest.Host { return listentest.New(netip.MustParseAddr("192.0.2.1")) }

func at(s string) netip.AddrPort {
	if s == "" {
		return netip.AddrPort{}
	}
	return netip.MustParseAddrPort(s)
}

func saying(addr, says string) setting { return setting{at(addr), text(says)} }

// setting is the address and the handler of a server.
type setting struct {
	Addr    netip.AddrPort
	Handler http.Handler
}

// running is a running Server on a network in memory, in fake time.
type running struct {
	*Server
	t      *testing.T
	net    *listentest.Host
	log    *strings.Builder
	failed *[]string
	cancel context.CancelFunc
	ended  chan error
}

func run(t *testing.T, n *listentest.Host, s setting, change func(*ServerOptions)) running {
	t.Helper()
	r := running{t: t, net: n, log: &strings.Builder{}, failed: &[]string{}, ended: make(chan error, 1)}
	o := ServerOptions{
		Name: "metrics", Listen: n.Listen, Addr: s.Addr, Handler: s.Handler,
		Log: slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}})),
		Failed: func(err error) { *r.failed = append(*r.failed, err.Error()) },
	}
	if change != nil {
		change(&o)
	}
	r.Server = NewServer(o)
	var ctx context.Context
	ctx, r.cancel = context.WithCancel(t.Context())
	go func() { r.ended <- r.Run(ctx) }()
	synctest.Wait()
	return r
}

// expect compares what clients of the addresses get: "address=answer ...". It returns when the server has closed the
// connections, because a server with open connections takes longer to stop.
func (r running) expect(what, want string) {
	r.t.Helper()
	synctest.Wait()
	var got []string
	for one := range strings.FieldsSeq(want) {
		addr, _, _ := strings.Cut(one, "=")
		got = append(got, addr+"="+answerOf(r.t, r.net, addr))
	}
	synctest.Wait()
	if g := strings.Join(got, " "); g != want {
		r.t.Errorf("%s: got %s, want %s", what, g, want)
	}
}

func (r running) expectState(what, want string) {
	r.t.Helper()
	s := r.State()
	if got := fmt.Sprintf("%s, %s, %s", s.Address, s.Serving, s.Error); got != want {
		r.t.Errorf("%s: state is\n%s\nwant\n%s", what, got, want)
	}
}

func (r running) end() {
	r.t.Helper()
	r.cancel()
	if err := <-r.ended; err != nil {
		r.t.Errorf("ended with %v", err)
	}
	if n := len(r.net.Open()); n > 0 {
		r.t.Errorf("%d ports are left open", n)
	}
}

// occupy opens a port as another program.
func occupy(t *testing.T, n *listentest.Host, addr string) net.Listener {
	t.Helper()
	l, err := n.Listen(t.Context(), "tcp", at(addr))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

const busy = "serve metrics: listen tcp 127.0.0.1:10249: address already in use"

func TestServerRetries(t *testing.T) {
	t.Run("S-272 port busy, hard-fail false: retried every 5 s, told once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := host()
			other := occupy(t, n, "127.0.0.1:10249")
			r := run(t, n, saying("127.0.0.1:10249", "one"), nil)
			r.expectState("busy", "127.0.0.1:10249, invalid AddrPort, "+busy)
			time.Sleep(12 * time.Second)
			_ = other.Close()
			time.Sleep(3*time.Second - 1)
			r.expect("just before the third retry", "127.0.0.1:10249=refused")
			time.Sleep(time.Nanosecond)
			r.expect("after it", "127.0.0.1:10249=one")
			r.expectState("after it", "127.0.0.1:10249, 127.0.0.1:10249, ")
			if got := fmt.Sprint(*r.failed); got != "["+busy+"]" {
				t.Errorf("told %s, want it once", got)
			}
			want := "level=ERROR msg=\"Cannot serve\" server=metrics error=\"" + busy + "\"\n" +
				"level=INFO msg=Serving server=metrics address=127.0.0.1:10249\n" +
				"level=INFO msg=\"The server works again\" server=metrics\n"
			if r.log.String() != want {
				t.Errorf("logged\n%s\nwant\n%s", r.log, want)
			}
			r.end()
		})
	})
	t.Run("S-272 port busy, hard-fail true: event and exit", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := host()
			other := occupy(t, n, "127.0.0.1:10249")
			r := run(t, n, saying("127.0.0.1:10249", "one"), func(o *ServerOptions) { o.HardFail = true })
			if err := <-r.ended; err == nil || err.Error() != busy || !errors.Is(err, syscall.EADDRINUSE) {
				t.Errorf("ended with %v, want %s", err, busy)
			}
			if got := fmt.Sprint(*r.failed); got != "["+busy+"]" {
				t.Errorf("told %s", got)
			}
			_ = other.Close()
		})
	})
}

// A server that is switched off opens no port and waits for the end.
func TestServerIsSwitchedOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, host(), saying("", "one"), nil)
		r.expect("off", "127.0.0.1:1=refused")
		r.expectState("off", ", invalid AddrPort, ")
		r.end()
	})
}

func TestServerOpensAPortThatBreaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := host()
		r := run(t, n, saying("127.0.0.1:1", "one"), func(o *ServerOptions) { o.HardFail = true })
		n.Break(at("127.0.0.1:1"), errors.New("out of order"))
		r.expect("broken", "127.0.0.1:1=refused")
		r.expectState("broken", "127.0.0.1:1, invalid AddrPort, serve metrics at 127.0.0.1:1: out of order")
		time.Sleep(5 * time.Second)
		r.expect("opened again", "127.0.0.1:1=one")
		r.end()
	})
}

// A request under way is answered when the server stops, unless it takes long.
func TestServerFinishesRequests(t *testing.T) {
	for _, tt := range []struct {
		takes, ends time.Duration
		answer      string
	}{{time.Second, time.Second, "done"}, {time.Hour, 2 * time.Second, "EOF"}} {
		t.Run(tt.answer, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := host()
				slow := func(w http.ResponseWriter, r *http.Request) {
					select {
					case <-time.After(tt.takes):
						text("done")(w, r)
					case <-r.Context().Done():
					}
				}
				r := run(t, n, setting{at("127.0.0.1:1"), http.HandlerFunc(slow)}, nil)
				c, err := n.Dial(t.Context(), "127.0.0.1:1")
				if err != nil {
					t.Fatal(err)
				}
				answer := make(chan string)
				go func() {
					fmt.Fprint(c, "GET / HTTP/1.0\r\n\r\n")
					b := make([]byte, 1000)
					read, err := c.Read(b)
					if err != nil {
						answer <- err.Error()
						return
					}
					answer <- string(b[:read])
				}()
				synctest.Wait()
				began := time.Now()
				r.cancel()
				if got := <-answer; !strings.Contains(got, tt.answer) {
					t.Errorf("answered %q, want %q", got, tt.answer)
				}
				if err := <-r.ended; err != nil {
					t.Errorf("ended with %v", err)
				}
				if took := time.Since(began).Round(time.Second); took != tt.ends {
					t.Errorf("ended after %v, want %v", took, tt.ends)
				}
			})
		})
	}
}

// The server closes connections of silent and of slow clients.
func TestServerClosesSlowConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := host()
		r := run(t, n, saying("127.0.0.1:1", "one"), nil)
		for _, tt := range []struct {
			says string
			ends time.Duration
		}{
			{"", 5 * time.Second},
			{"GET / HTTP/1.1\r\n", 5 * time.Second},
			{"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 90 * time.Second},
		} {
			c, err := n.Dial(t.Context(), "127.0.0.1:1")
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			go func() { fmt.Fprint(c, tt.says) }()
			for b := make([]byte, 1000); err == nil; {
				_, err = c.Read(b)
			}
			if took := time.Since(began); took != tt.ends {
				t.Errorf("%q: cut off after %v, want %v", tt.says, took, tt.ends)
			}
			_ = c.Close()
		}
		r.end()
	})
}
