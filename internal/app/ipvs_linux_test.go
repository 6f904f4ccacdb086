package app

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/ipset"
	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
	"github.com/sluice-proxy/sluice/internal/linux/rtnl"
	"github.com/sluice-proxy/sluice/internal/takeover"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// repairLimit is how long an edit of virtual servers may last, with default settings.
const repairLimit = 2 * time.Second

// Connections fail for no longer than repairLimit after a flush of all virtual servers, which no notification reports.
func TestAFlushUnderTrafficIsRepairedInModeIPVS(t *testing.T) {
	kerneltest.NeedIPVS(t)
	netns := kerneltest.Namespace(t)
	serveEndpoint(t, netns)
	t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "lock"))
	config := filepath.Join(t.TempDir(), "config.yaml")
	write(t, config, quiet)
	o, _ := daemonOptions(t, config, "--manifests="+manifests(t, webService), "--proxy-mode=ipvs")
	o.NetNS = netns
	r := run(t, o)
	r.sync()
	r.drain()
	for n := range 4 {
		// Flushes must not all come as long before a poll.
		phase := time.Duration(n) * 400 * time.Millisecond
		if err := connectFor(t, netns, repairLimit+phase).last; err != nil { // also for a poll after the write
			t.Fatalf("before the flush: %v", err)
		}
		kerneltest.FlushIPVS(t, netns)
		got := connectFor(t, netns, 2*repairLimit)
		if got.last == nil || got.failed > repairLimit {
			t.Errorf("connections failed for %v after a flush, want at most %v, and some: %v", got.failed, repairLimit, got.last)
		}
		t.Logf("connections failed for %v after a flush: %v", got.failed, got.last)
	}
}

// serveEndpoint accepts connections at the endpoint of webService.
func serveEndpoint(t *testing.T, netns int) {
	t.Helper()
	kerneltest.Do(t, netns, func() error {
		if out, err := exec.Command("ip", "addr", "add", "10.244.1.5/32", "dev", "lo").CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		l, err := net.Listen("tcp", "10.244.1.5:8080")
		if err != nil {
			return err
		}
		kerneltest.Serve(t, l, func(c net.Conn) { _ = c.Close() })
		return nil
	})
}

// outage is a time in which connections failed.
type outage struct {
	failed time.Duration // from the start to the last failure
	last   error
}

// connectFor connects to webService every 10 ms.
func connectFor(t *testing.T, netns int, period time.Duration) outage {
	t.Helper()
	var out outage
	began := time.Now()
	kerneltest.Do(t, netns, func() error {
		for ; time.Since(began) < period; time.Sleep(10 * time.Millisecond) {
			c, err := net.DialTimeout("tcp", "10.96.0.80:80", 100*time.Millisecond)
			if err != nil {
				out = outage{time.Since(began), err}
				continue
			}
			_ = c.Close()
		}
		return nil
	})
	return out
}

// The whole program in mode ipvs: a restart writes nothing, a change is written, what another
// program clears is repaired, and a cleanup removes everything.
func TestLifeOfANodeInModeIPVS(t *testing.T) {
	kerneltest.NeedIPVS(t)
	netns := kerneltest.Namespace(t)
	table := ipvs.New(netns)
	t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "lock"))
	config := filepath.Join(t.TempDir(), "config.yaml")
	write(t, config, quiet+"ipvs: {scheduler: wrr}\n")
	path := manifests(t, webService)
	o, _ := daemonOptions(t, config, "--manifests="+path, "--proxy-mode=ipvs")
	o.NetNS = netns
	check := func(destinations int) {
		t.Helper()
		listed, err := table.List(t.Context())
		if err != nil || len(listed) != 1 || listed[0].String() != "tcp 10.96.0.80:80" || listed[0].Scheduler != "wrr" {
			t.Fatalf("virtual servers: %v, %v", listed, err)
		}
		if d, err := table.Destinations(t.Context(), listed[0].Server); err != nil || len(d[0]) != destinations {
			t.Errorf("destinations: %v, %v", d, err)
		}
	}

	r := run(t, o)
	first := r.sync()
	check(1)
	if _, body := get(t, netns, "127.0.0.1:10249/proxyMode"); body != "ipvs" {
		t.Errorf("the mode is %q", body)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r = run(t, o)
	if again := r.sync(); !again.Full() || again.Steps != 0 || again.Adopted != first.Steps {
		t.Errorf("a restart writes %d steps and keeps %d entries, want 0 and %d", again.Steps, again.Adopted, first.Steps)
	}
	scaled := strings.Replace(webService, "endpoints: [", "endpoints: [{addresses: [10.244.1.6]}, ", 1)
	if err := os.WriteFile(path, []byte(scaled), 0o600); err != nil {
		t.Fatal(err)
	}
	if change := r.sync(); change.Full() || change.Steps != 2 {
		t.Errorf("one more endpoint is %+v, want two steps: "+
			"a destination, and its member of the set for connections to itself", change)
	}
	check(2)

	time.Sleep(2 * time.Second) // for a poll after the write
	began := time.Now()
	server := ipvs.Server{Addr: netip.MustParseAddr("10.96.0.80"), Protocol: 6, Port: 80}
	if err := table.Delete(t.Context(), server); err != nil {
		t.Fatal(err)
	}
	if s := r.sync(); s.Steps != 3 || !s.Repair() {
		t.Errorf("after ipvsadm -C: %+v, want a repair in 3 steps", s)
	}
	if took := time.Since(began); took > repairLimit {
		t.Errorf("the repair took %v", took)
	}
	check(2)
	r.drain()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}

	lines, err := Cleanup(t.Context(), o)
	if err != nil {
		t.Fatalf("cleanup: %v", err)
	}
	servers, err := table.Servers(t.Context())
	sets, setErr := ipset.New(netns).Names(t.Context())
	_, linkErr := rtnl.New(netns).Addresses(t.Context(), takeover.ServiceDevice)
	if err := errors.Join(err, setErr); err != nil || len(servers)+len(sets) > 0 || !errors.Is(linkErr, rtnl.ErrNotFound) {
		t.Errorf("after a cleanup (%q): %v, %v, %v, %v", lines, servers, sets, err, linkErr)
	}
}
