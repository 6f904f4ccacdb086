package bpf

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/lab"
)

// oneSecond is the first bucket with connections whose first SYN was lost: the kernel sends the next one after 1 s.
const oneSecond = 14

// A backend without room for a second connection loses its SYN. The duration includes the time until the next SYN.
// Connections that go directly to the backend, or are refused, have no duration.
func TestDurations(t *testing.T) {
	const backend, refusing = "127.0.0.1:8080", "10.96.0.2:80"
	n := newNode(t)
	listener := listenOnce(t, n.opt.NetNS, backend)
	n.write(append(service(vip, 6, OfNode, backend), service(refusing, 6, OfNode, "127.0.0.1:9")...)...)
	n.run(func() error {
		if err := connectOnce(refusing); !errors.Is(err, unix.ECONNREFUSED) {
			return fmt.Errorf("%s: %w", refusing, err)
		}
		return errors.Join(connectOnce(backend), accept(listener), connectOnce(vip))
	})
	delayed, inside := make(chan error, 1), lab.Inside(t, n.opt.Cgroup, n.opt.NetNS)
	go func() { delayed <- inside(func() error { return connectOnce(vip) }) }()
	eventually(t, func() error { return n.inside(dropped) })
	if err := errors.Join(accept(listener), <-delayed); err != nil {
		t.Fatal(err)
	}
	all, err := n.conn.Durations()
	if err != nil || len(all) != 1 {
		t.Fatalf("got %v, %v, want those of one pool", all, err)
	}
	for pool, got := range all {
		quick, slow := sum(got.Buckets[:oneSecond]), sum(got.Buckets[oneSecond:])
		if quick != 1 || slow != 1 || got.Sum < time.Second {
			t.Errorf("%s: %v, want one connection of less and one of more than a second", pool, got)
		}
	}
}

func sum(list []uint64) (sum uint64) {
	for _, n := range list {
		sum += n
	}
	return sum
}

// listenOnce listens with room for one connection.
func listenOnce(t *testing.T, netns int, at string) (fd int) {
	t.Helper()
	kerneltest.Do(t, netns, func() (err error) {
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return errors.Join(unix.Bind(fd, lab.Sockaddr(netip.MustParseAddrPort(at))), unix.Listen(fd, 0))
	})
	t.Cleanup(func() { _ = unix.Close(fd) }) // nothing was written to it
	return fd
}

func accept(listener int) error {
	fd, _, err := unix.Accept(listener)
	return errors.Join(err, unix.Close(fd))
}

// dropped returns an error until a listener of this network namespace has dropped a SYN.
func dropped() error {
	b, err := os.ReadFile("/proc/thread-self/net/netstat")
	if err != nil {
		return err
	}
	lines := strings.Split(string(b), "\n")
	names, values := strings.Fields(lines[0]), strings.Fields(lines[1])
	for i, name := range names {
		if name == "ListenDrops" && values[i] != "0" {
			return nil
		}
	}
	return errors.New("no SYN was dropped")
}

// Each connection is counted at its backend, until the programs are removed, also if a restart adopts the maps.
func TestBackendCounts(t *testing.T) {
	n := newNode(t)
	want := map[string]uint64{}
	for _, at := range []string{"127.0.0.1:8080", "127.0.0.2:8080", "127.0.0.3:8080"} {
		serve(t, n.opt.NetNS, at)
		want[at] = 0
	}
	entries := service(vip, 6, OfNode, "127.0.0.1:8080", "127.0.0.2:8080", "127.0.0.3:8080")
	for range 2 {
		n.write(entries...)
		for range 50 {
			n.run(func() error {
				by, _, err := ask(vip)
				want[by]++
				return err
			})
		}
		n.conn = n.reopen(func(*Options) {})
	}
	counted, err := n.conn.BackendCounts()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]uint64{}
	for m, n := range counted {
		got[m.Backend.String()] += n
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// Bounds are those of the programs, whose types have the size of those of Go.
func TestDurationBounds(t *testing.T) {
	bounds := DurationBounds()
	if first, last := bounds[0], bounds[len(bounds)-1]; first != 100*time.Microsecond || last != 6553600*time.Microsecond {
		t.Errorf("bounds from %s to %s", first, last)
	}
	if at := bounds[oneSecond-1]; at >= time.Second || bounds[oneSecond] <= time.Second {
		t.Errorf("bucket %d begins at %s", oneSecond, at)
	}
	spec, err := loadSock()
	if err != nil {
		t.Fatal(err)
	}
	if size := spec.Maps[sockMapDurations].ValueSize; size != 8*(1+uint32(len(bounds)+1)) {
		t.Errorf("a value has %d bytes", size)
	}
}

// The program runs beside those of other projects, unless they allow no others. Then only the durations are missing.
func TestTryDurations(t *testing.T) {
	for name, c := range map[string]struct {
		flags uint32
		want  error
	}{
		"beside another program":              {unix.BPF_F_ALLOW_MULTI, nil},
		"beside one that allows no other":     {0, unix.EPERM},
		"beside one that others may override": {unix.BPF_F_ALLOW_OVERRIDE, unix.EPERM},
	} {
		t.Run(name, func(t *testing.T) {
			o := selfTestOptions(t)
			otherProgram{"other", ebpf.SockOps, ebpf.AttachCGroupSockOps, c.flags}.attach(t, o.Cgroup)
			if err := TryDurations(o); !errors.Is(err, c.want) {
				t.Errorf("it returns %v, want %v", err, c.want)
			}
			if err := Try(o); err != nil {
				t.Errorf("the other programs: %v", err)
			}
			if _, err := os.Stat(o.Dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s is there: %v", o.Dir, err)
			}
		})
	}
}

// Without durations the program is not attached, and one of an earlier run is removed.
func TestWithoutDurations(t *testing.T) {
	n, backends := twoBackends(t)
	n.conn = n.reopen(func(o *Options) { o.Durations = false })
	if got := n.reads(); got != other {
		t.Errorf("the programs are %q, want %q", got, other)
	}
	before, err := n.conn.Durations()
	if err != nil || len(before) != 1 {
		t.Errorf("durations %v, %v, want those of one pool", before, err)
	}
	n.balances(backends...)
	after, err := n.conn.Durations()
	if diff := cmp.Diff(before, after); diff != "" || err != nil {
		t.Errorf("%v, -before +after:\n%s", err, diff)
	}
	if _, err := os.Stat(n.conn.linkPath(sockops)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the link of %s: %v", sockops, err)
	}
}
