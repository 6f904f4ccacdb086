package relay

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// BenchmarkUDP measures questions and answers of 64 bytes: directly, through an Engine, and through one with package
// net alone. With one client it reports the latency, with 64 clients the rate.
func BenchmarkUDP(b *testing.B) {
	for _, clients := range []int{1, 64} {
		for _, way := range []string{"direct", "epoll", "portable"} {
			b.Run(fmt.Sprintf("%s/clients=%d", way, clients), func(b *testing.B) {
				ns := kerneltest.Namespace(b)
				at := echo(b, ns)
				if way != "direct" {
					at = through(b, ns, way, at)
				}
				exchange(b, ns, at, clients)
			})
		}
	}
}

// echo starts a backend that answers as fast as it can, without Go's poller.
func echo(b *testing.B, ns int) netip.AddrPort {
	b.Helper()
	c, at := echoUDP(b, ns, "x", "127.0.0.1:0")
	_ = c.Close()
	var fd int
	kerneltest.Do(b, ns, func() (err error) {
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())})
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		buffer := make([]byte, 2048)
		for {
			n, from, err := unix.Recvfrom(fd, buffer, 0)
			if err != nil || n == 0 {
				return
			}
			_ = unix.Sendto(fd, buffer[:n], 0, from)
		}
	}()
	b.Cleanup(func() {
		_, _ = dialUDP(b, ns, at).Write(nil)
		<-done
		_ = unix.Close(fd)
	})
	return at
}

// through starts an Engine before a backend and returns its address.
func through(b *testing.B, ns int, way string, to netip.AddrPort) netip.AddrPort {
	b.Helper()
	start := newSystem
	if way == "portable" {
		start = portableSystem
	}
	e, err := newEngine(Options{NetNS: ns}, start)
	if err != nil {
		b.Fatal(err)
	}
	l, err := e.Listen(Spec{Protocol: UDP, Addr: loopback, Balancer: NewBalancer(pools(to))})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- e.Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			b.Error(err)
		}
	})
	return l.Addr()
}

// exchange sends b.N questions from a number of clients and waits for each answer.
func exchange(b *testing.B, ns int, at netip.AddrPort, clients int) {
	b.Helper()
	conns := []*net.UDPConn{}
	for range clients {
		conns = append(conns, dialUDP(b, ns, at))
	}
	var all sync.WaitGroup
	times := make([][]time.Duration, clients)
	before := processorTime(b)
	b.ResetTimer()
	for i, c := range conns {
		all.Go(func() {
			buffer := make([]byte, 64)
			for range b.N/clients + 1 {
				start := time.Now()
				_ = c.SetReadDeadline(start.Add(time.Second))
				if _, err := c.Write(buffer[:64]); err != nil {
					b.Error(err)
					return
				}
				if _, err := c.Read(buffer); err != nil {
					b.Error(err)
					return
				}
				times[i] = append(times[i], time.Since(start))
			}
		})
	}
	all.Wait()
	b.StopTimer()
	b.ReportMetric(float64((processorTime(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
	sorted := slices.Sorted(slices.Values(slices.Concat(times...)))
	b.ReportMetric(float64(len(sorted))/b.Elapsed().Seconds(), "answers/s")
	b.ReportMetric(float64(sorted[len(sorted)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(sorted[len(sorted)*99/100].Microseconds()), "p99-us")
}

// processorTime returns how much processor time this process has used, with clients and backends.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
