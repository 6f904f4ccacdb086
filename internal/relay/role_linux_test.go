package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/machine"
	"github.com/sluice-proxy/sluice/test/seeds"
)

// Settings of a process that forwards.
const (
	backendVar = "SLUICE_TEST_BACKEND"
	filesVar   = "SLUICE_TEST_FILES" // the limit of file descriptors
)

// roles are the functions that copies of the test program run.
func roles() map[string]func() error {
	return map[string]func() error{"forward": forwardRole}
}

// forwardRole forwards to a backend in a process of its own. It prints the address, and another one that replies with
// its state.
func forwardRole() error {
	if n, err := strconv.Atoi(os.Getenv(filesVar)); err == nil {
		limit := unix.Rlimit{Cur: uint64(n), Max: uint64(n)}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			return err
		}
	}
	const many = 1 << 30
	e, err := New(Options{MaxConnections: many})
	if err != nil {
		return err
	}
	b := NewBalancer(one(netip.MustParseAddrPort(os.Getenv(backendVar))))
	l, err := e.Listen(Spec{Protocol: TCP, Addr: netip.MustParseAddrPort("127.0.0.1:0"), Balancer: b})
	if err != nil {
		return err
	}
	states, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // until the process ends
	if err != nil {
		return err
	}
	go func() {
		c, err := states.Accept() // one, as file descriptors may be few
		for err == nil {
			if _, err = c.Read(make([]byte, 1)); err == nil {
				err = json.NewEncoder(c).Encode(current(e, b))
			}
		}
	}()
	fmt.Println(l.Addr(), states.Addr())
	return e.Run(context.Background())
}

// processState is the state of a process in a role.
type processState struct {
	Stats  Stats
	Counts Counts
	Copied int64         // bytes that were read and written by the process: rchar and wchar of /proc/PID/io
	Memory int64         // bytes, resident
	CPU    time.Duration // since the start
}

func current(e *Engine, b *Balancer) processState {
	s := processState{Stats: e.Stats(), Counts: b.Counts()}
	io, _ := os.ReadFile("/proc/self/io")
	for line := range strings.Lines(string(io)) {
		var n int64
		if f := strings.Fields(line); len(f) == 2 && (f[0] == "rchar:" || f[0] == "wchar:") {
			n, _ = strconv.ParseInt(f[1], 10, 64)
			s.Copied += n
		}
	}
	status, _ := os.ReadFile("/proc/self/statm")
	if f := strings.Fields(string(status)); len(f) > 1 {
		pages, _ := strconv.ParseInt(f[1], 10, 64)
		s.Memory = pages * int64(os.Getpagesize())
	}
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	s.CPU = time.Duration(u.Utime.Nano() + u.Stime.Nano())
	return s
}

type process struct {
	*bench
	addr   netip.AddrPort
	states net.Conn
	read   *json.Decoder
}

// forwarder starts a process that forwards to a backend, with a limit of file descriptors.
func forwarder(b *bench, backend netip.AddrPort, files int) *process {
	b.Helper()
	b.Setenv(backendVar, backend.String())
	b.Setenv(filesVar, strconv.Itoa(files))
	_, line := kerneltest.Child(b, b.ns, "forward", nil)
	addrs := strings.Fields(line)
	if len(addrs) != 2 {
		b.Fatalf("the process prints %q", line)
	}
	p := &process{bench: b, addr: netip.MustParseAddrPort(addrs[0])}
	p.states = b.dial(netip.MustParseAddrPort(addrs[1]))
	_ = p.states.SetDeadline(time.Time{})
	p.read = json.NewDecoder(p.states)
	return p
}

func (p *process) state() processState {
	p.Helper()
	var s processState
	_, err := p.states.Write([]byte("x"))
	if err = errors.Join(err, p.read.Decode(&s)); err != nil {
		p.Fatal(err)
	}
	return s
}

// echo starts a backend that echoes.
func (b *bench) echo() netip.AddrPort {
	b.Helper()
	return b.backend(func(c *net.TCPConn) {
		_, _ = io.CopyBuffer(struct{ io.Writer }{c}, struct{ io.Reader }{c}, make([]byte, 512)) // without a pipe
		_ = c.Close()
	})
}

// Bulk data does not pass through the memory of the process.
func TestNoCopy(t *testing.T) {
	b := &bench{T: t, ns: kerneltest.Namespace(t)}
	const size = 1 << 30
	at := b.backend(func(c *net.TCPConn) {
		block := make([]byte, 1<<18)
		for n := 0; n < size; n += len(block) {
			_, _ = c.Write(block)
		}
		_ = c.Close()
	})
	p := forwarder(b, at, 1000)
	before := p.state()
	c := b.dial(p.addr)
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	begin := time.Now()
	if n, err := io.Copy(io.Discard, c); n != size || err != nil {
		t.Fatalf("received %d bytes, %v", n, err)
	}
	took := time.Since(begin)
	after := p.state()
	copied := after.Copied - before.Copied
	t.Logf("%d MiB in %v, %d KiB copied", size>>20, took, copied>>10)
	if after.Counts.Sent != size || copied > size/100 {
		t.Errorf("%d bytes counted, %d copied", after.Counts.Sent, copied)
	}
}

// Without file descriptors new clients are reset or wait, and that is counted; open connections continue, and the
// process does not spin. When there are some again, new clients are served.
func TestNoFiles(t *testing.T) {
	b := &bench{T: t, ns: kerneltest.Namespace(t)}
	p := forwarder(b, b.echo(), 64)
	var served []*net.TCPConn
	others := 0
	for range 40 {
		c, err := b.outcomeWithin(p.addr, machine.Scale(200*time.Millisecond))
		if err == nil {
			served = append(served, c)
		} else {
			others++
		}
	}
	if len(served) < 20 || others < 5 {
		t.Errorf("%d served, %d reset or waiting", len(served), others)
	}
	before := p.state()
	if before.Stats.Refused[reasonFiles] == 0 {
		t.Errorf("counted %v, want refusals for lack of file descriptors", before.Stats.Refused)
	}
	time.Sleep(time.Second)
	if cpu := p.state().CPU - before.CPU; cpu > machine.Scale(time.Second/5) {
		t.Errorf("the process has used the CPU for %v of a second", cpu)
	}
	for _, c := range served {
		_ = c.SetDeadline(time.Now().Add(patience))
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	}
	b.eventually("served again", func() bool {
		_, err := b.outcome(p.addr)
		return err == nil
	})
}

// raiseFileLimit raises the limit of file descriptors for the test, where that is allowed.
func raiseFileLimit(t *testing.T, n uint64) {
	t.Helper()
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if before.Cur >= n {
		return
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: max(n, before.Max)}); err != nil {
		t.Logf("the limit of file descriptors stays %d: %v", before.Cur, err)
		return
	}
	t.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &before) })
}

// complete fails a test that cannot use as much as it should on the kernel of test/uml, where it must be able to.
// Elsewhere the limits of the machine decide how much it uses.
func complete(t *testing.T, what string, got, want int) {
	t.Helper()
	if os.Getenv(kerneltest.CompleteVar) != "" && got != want {
		t.Fatalf("%d %s, want %d on this kernel", got, what, want)
	}
}

// socketMemory returns the lines of /proc/net/sockstat that end with the memory of all sockets in pages.
func socketMemory(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/net/sockstat")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, " mem ") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return strings.Join(lines, "; ")
}

// Clients that have exchanged a byte and are idle cost little memory and no time of others. The number of connections
// follows the limit of file descriptors: with 41,000 or more, as test/uml has, there are 20,000.
func TestIdle(t *testing.T) {
	seeds.Long(t)
	b := &bench{T: t, ns: kerneltest.Namespace(t)}
	kerneltest.Do(t, b.ns, func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("1100 65000"), 0o644)
	})
	const most, spare = 20_000, 1000
	raiseFileLimit(t, 2*most+spare)
	n := min(most, (fileLimit()-spare)/2)
	complete(t, "connections", n, most)
	p := forwarder(b, b.echo(), 2*n+spare)
	conns := make([]*net.TCPConn, n)
	before := p.state()
	for i := range conns {
		conns[i] = b.dial(p.addr)
		_, _ = conns[i].Write([]byte("x"))
		if _, err := io.ReadFull(conns[i], make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	var after processState
	b.eventually("the last byte is counted", func() bool { // after the client has it
		after = p.state()
		return after.Counts.Sent >= int64(n)
	})
	if c := after.Counts; c.Open != int64(n) || c.Received != int64(n) || c.Sent != int64(n) {
		t.Errorf("counted %+v, want %d open connections with a byte in each direction", c, n)
	}
	t.Logf("%d connections: %d bytes for each, %d MiB in all; sockets of the kernel: %s",
		n, (after.Memory-before.Memory)/int64(n), after.Memory>>20, socketMemory(t))
	if after.Memory > 500<<20 {
		t.Errorf("%d bytes of memory", after.Memory)
	}
	var slowest time.Duration
	const rounds = 200
	for range rounds {
		begin := time.Now()
		if _, err := b.outcome(p.addr); err != nil {
			t.Fatal(err)
		}
		slowest = max(slowest, time.Since(begin))
	}
	t.Logf("the slowest of %d other clients took %v", rounds, slowest)
	if slowest > time.Second {
		t.Errorf("another client took %v", slowest)
	}
	if cpu := p.state().CPU - after.CPU; cpu > time.Second {
		t.Errorf("%d other clients took %v of the CPU", rounds, cpu)
	}
}
