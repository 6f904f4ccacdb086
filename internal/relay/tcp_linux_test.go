package relay

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/machine"
)

// random returns reproducible bytes.
func random(seed byte, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

func sum(b []byte) []byte {
	h := sha256.Sum256(b)
	return h[:]
}

// Bytes of all sizes arrive as they were sent, in both directions at the same time. Both ends close their
// direction only.
func TestIntegrity(t *testing.T) {
	both(t, Options{}, func(b *bench) {
		down := random(1, 3<<20)
		at := b.backend(func(c *net.TCPConn) {
			defer func() { _ = c.Close() }()
			var got []byte
			var reading sync.WaitGroup
			reading.Go(func() { got, _ = io.ReadAll(c) })
			_, _ = io.Copy(c, bytes.NewReader(down))
			reading.Wait()
			_, _ = c.Write(sum(got))
		})
		l, balancer := b.front(one(at))
		var clients sync.WaitGroup
		for i := range byte(20) {
			c := b.dial(l.Addr())
			up := random(i, 1<<(i+2)+int(i))
			clients.Go(func() {
				for rest := up; len(rest) > 0; {
					n := min(len(rest), 1+rand.IntN(100_000))
					if _, err := c.Write(rest[:n]); err != nil {
						t.Error(err)
						return
					}
					rest = rest[n:]
				}
				_ = c.CloseWrite()
			})
			clients.Go(func() {
				got, err := io.ReadAll(c)
				if err != nil || !bytes.Equal(got, append(bytes.Clone(down), sum(up)...)) {
					t.Errorf("%d bytes sent: received %d bytes, %v; want %d", len(up), len(got), err, len(down)+sha256.Size)
				}
			})
		}
		clients.Wait()
		b.eventually("all ended", func() bool { return balancer.Counts().Open == 0 })
		want := Counts{Connections: 20, Sent: 20 * int64(len(down)+sha256.Size)}
		for i := range byte(20) {
			want.Received += 1<<(i+2) + int64(i)
		}
		got := balancer.Counts()
		want.Retries = got.Retries // a busy machine may take longer than an attempt
		if got != want {
			t.Errorf("counted %+v, want %+v", got, want)
		}
	})
}

// A backend that refuses or does not answer costs the client nothing but time: the next one gets the bytes
// that the client has sent meanwhile.
func TestRetry(t *testing.T) {
	both(t, Options{}, func(b *bench) {
		echo := b.backend(func(c *net.TCPConn) { _, _ = io.Copy(c, c); _ = c.Close() })
		for name, bad := range map[string]netip.AddrPort{"refused": b.refusing(), "silent": b.silent()} {
			l, balancer := b.front(one(bad, echo))
			c := b.dial(l.Addr())
			_, _ = c.Write([]byte("hello"))
			_ = c.CloseWrite()
			got, err := io.ReadAll(c)
			if string(got) != "hello" || err != nil {
				t.Errorf("%s: received %q, %v", name, got, err)
			}
			if n := balancer.Counts(); n.Retries != 1 || n.Failures != 0 {
				t.Errorf("%s: counted %+v", name, n)
			}
		}
	})
}

// By default there are four attempts, which may take 250 ms, 500 ms, 1 s and 2 s.
func TestAttemptsByDefault(t *testing.T) {
	want := []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second}
	if got := (Options{}).withDefaults(1024).Attempts; !slices.Equal(got, want) {
		t.Errorf("attempts of %v, want %v", got, want)
	}
}

// An attempt that is not answered ends when its time is over, not before. Then the next one begins, to another
// backend while there is one. After the last one the client is reset.
func TestAttemptsInTime(t *testing.T) {
	attempts := []time.Duration{
		50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond,
	}
	both(t, Options{Attempts: attempts}, func(b *bench) {
		b.Parallel()
		early, late := 5*time.Millisecond, machine.Scale(time.Second) // clocks are not exact, and the machine may be busy
		l, balancer := b.front(one(b.silent(), b.silent(), b.silent(), b.silent(), b.silent()))
		begin := time.Now()
		c := b.dial(l.Addr())
		due := time.Duration(0)
		for i, limit := range attempts[:3] {
			due += limit
			b.eventually("the next attempt", func() bool { return balancer.Counts().Retries > int64(i) })
			if took := time.Since(begin); took < due-early || took > due+late {
				t.Errorf("attempt %d begins after %v, want %v", i+2, took, due)
			}
		}
		_, err := c.Read(make([]byte, 1))
		due += attempts[3]
		if took := time.Since(begin); took < due-early || took > due+late || !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("after %v the client reads %v, want a reset after %v", took, err, due)
		}
		b.eventually("counted", func() bool { return balancer.Counts().Open == 0 })
		if got, want := balancer.Counts(), (Counts{Connections: 1, Retries: 3, Failures: 1}); got != want {
			t.Errorf("counted %+v, want %+v", got, want)
		}
	})
}

// If no backend can be reached, the client is reset.
func TestFailure(t *testing.T) {
	both(t, Options{Attempts: []time.Duration{50 * time.Millisecond, 50 * time.Millisecond}}, func(b *bench) {
		for name, target := range map[string]*Target{
			"refused": one(b.refusing(), b.refusing(), b.refusing()), "silent": one(b.silent()), "none": one(),
		} {
			l, balancer := b.front(target)
			if _, err := b.outcome(l.Addr()); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%s: error %v, want a reset", name, err)
			}
			b.eventually("counted", func() bool { return balancer.Counts().Open == 0 })
			if n := balancer.Counts(); n.Failures != 1 || n.Connections != 1 {
				t.Errorf("%s: counted %+v", name, n)
			}
		}
	})
}

// Each direction is closed alone, whichever is first.
func TestHalfClose(t *testing.T) {
	both(t, Options{}, func(b *bench) {
		fromClient := make(chan string, 1)
		at := b.backend(func(c *net.TCPConn) {
			_, _ = c.Write([]byte("from backend"))
			_ = c.CloseWrite()
			got, _ := io.ReadAll(c)
			fromClient <- string(got)
			_ = c.Close()
		})
		l, _ := b.front(one(at))
		c := b.dial(l.Addr())
		if got, err := io.ReadAll(c); string(got) != "from backend" || err != nil {
			t.Fatalf("received %q, %v", got, err)
		}
		if _, err := c.Write([]byte("from client")); err != nil {
			t.Fatal(err)
		}
		_ = c.CloseWrite()
		if got := <-fromClient; got != "from client" {
			t.Errorf("the backend received %q", got)
		}
	})
}

// A reset of one side resets the other one, whether or not bytes were moved before.
func TestReset(t *testing.T) {
	both(t, Options{}, func(b *bench) {
		result := make(chan error, 1)
		at := b.backend(func(c *net.TCPConn) {
			_, _ = io.ReadFull(c, make([]byte, 1))
			_, err := c.Read(make([]byte, 1))
			result <- err
			_ = c.Close()
		})
		l, _ := b.front(one(at))
		c := b.dial(l.Addr())
		_, _ = c.Write([]byte("x"))
		b.eventually("connected", func() bool { return b.engine.Stats().Connections == 1 })
		time.Sleep(10 * time.Millisecond)
		_ = c.SetLinger(0)
		_ = c.Close()
		if err := <-result; !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the backend has error %v, want a reset", err)
		}

		at = b.backend(func(c *net.TCPConn) {
			_, _ = c.Read(make([]byte, 1))
			_ = c.SetLinger(0)
			_ = c.Close()
		})
		l, _ = b.front(one(at))
		c = b.dial(l.Addr())
		_, _ = c.Write([]byte("x"))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the client has error %v, want a reset", err)
		}
	})
}

// A client that does not read stops its backend, and no other client.
func TestBackPressure(t *testing.T) {
	both(t, Options{}, func(b *bench) {
		at := b.backend(func(c *net.TCPConn) {
			block := make([]byte, 1<<16)
			for {
				if _, err := c.Write(block); err != nil {
					return
				}
			}
		})
		l, balancer := b.front(one(at))
		c := b.dial(l.Addr())
		sent := int64(-1)
		b.eventually("stopped", func() bool {
			before := sent
			time.Sleep(200 * time.Millisecond)
			sent = balancer.Counts().Sent
			return sent == before && (sent > 0 || b.Name() == "TestBackPressure/portable")
		})
		const most = 64 << 20
		if sent > most {
			t.Errorf("%d bytes are on their way to a client that does not read", sent)
		}
		echo := b.backend(func(c *net.TCPConn) { _, _ = io.Copy(c, c); _ = c.Close() })
		other, _ := b.front(one(echo))
		d := b.dial(other.Addr())
		_, _ = d.Write([]byte("x"))
		if _, err := io.ReadFull(d, make([]byte, 1)); err != nil {
			t.Errorf("another client: %v", err)
		}
		if n, err := io.CopyN(io.Discard, c, 100<<20); err != nil { // it continues when the client reads
			t.Errorf("received %d bytes: %v", n, err)
		}
	})
}

// Connections to a removed backend continue for Drain, and longer if the backend returns.
func TestDrain(t *testing.T) {
	drain := machine.Scale(300 * time.Millisecond)
	both(t, Options{Drain: drain}, func(b *bench) {
		b.Parallel()
		echo := func(c *net.TCPConn) { _, _ = io.Copy(c, c); _ = c.Close() }
		stays, leaves, returns := b.backend(echo), b.backend(echo), b.backend(echo)
		l, balancer := b.front(one(stays, leaves, returns))
		conns := []*net.TCPConn{b.dial(l.Addr()), b.dial(l.Addr()), b.dial(l.Addr())}
		talk := func(c *net.TCPConn) error {
			_, _ = c.Write([]byte("x"))
			_, err := io.ReadFull(c, make([]byte, 1))
			return err
		}
		for _, c := range conns {
			if err := talk(c); err != nil {
				t.Fatal(err)
			}
		}
		balancer.Set(one(stays))
		for _, c := range conns {
			if err := talk(c); err != nil {
				t.Errorf("at once: %v", err)
			}
		}
		balancer.Set(one(stays, returns))
		b.eventually("ended", func() bool { return balancer.Counts().Open == 2 })
		time.Sleep(drain) // no other ends
		failed := 0
		for _, c := range conns {
			if talk(c) != nil {
				failed++
			}
		}
		if failed != 1 {
			t.Errorf("%d connections have ended, want the one whose backend has left", failed)
		}
		begin := time.Now()
		l.Close()
		b.eventually("closed", func() bool {
			c, err := b.try(l.Addr(), time.Second)
			if err == nil {
				_ = c.Close()
			}
			return err != nil
		})
		b.eventually("ended", func() bool { return balancer.Counts().Open == 0 })
		if took := time.Since(begin); took < drain {
			t.Errorf("connections of a closed listener have ended after %v", took)
		}
	})
}

// Clients that are not admitted, and those beyond the limit, are reset.
func TestRefused(t *testing.T) {
	both(t, Options{MaxConnections: 2}, func(b *bench) {
		echo := b.backend(func(c *net.TCPConn) { _, _ = io.Copy(c, c); _ = c.Close() })
		l, balancer := b.front(one(echo))
		var refused int
		for range 5 {
			if _, err := b.outcome(l.Addr()); errors.Is(err, syscall.ECONNRESET) {
				refused++
			}
		}
		if n := b.engine.Stats(); refused != 3 || n.Refused[reasonConnections] != 3 || n.Connections != 2 {
			t.Errorf("%d refused, %+v", refused, n)
		}
		l.Set(balancer, func(client netip.Addr) Admission {
			return Admission{Refused: client == netip.MustParseAddr("127.0.0.1")}
		})
		if _, err := b.outcome(l.Addr()); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("error %v, want a reset", err)
		}
	})
}
