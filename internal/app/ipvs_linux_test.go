package app

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/ipset"
	"github.com/sluice-proxy/sluice/internal/kernel/ipvs"
	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
	"github.com/sluice-proxy/sluice/internal/kernel/link"
	"github.com/sluice-proxy/sluice/internal/takeover"
)

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
		t.Errorf("one more endpoint is %+v, want two steps: a destination, and its member of the set for connections to itself", change)
	}
	check(2)

	time.Sleep(2 * time.Second) // for a poll after the write
	began := time.Now()
	if err := table.Delete(t.Context(), ipvs.Server{Addr: netip.MustParseAddr("10.96.0.80"), Protocol: 6, Port: 80}); err != nil {
		t.Fatal(err)
	}
	if s := r.sync(); s.Steps != 3 || !s.Repair() {
		t.Errorf("after ipvsadm -C: %+v, want a repair in 3 steps", s)
	}
	if took := time.Since(began); took > 2*time.Second {
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
	_, linkErr := link.New(netns).Addresses(t.Context(), takeover.ServiceDevice)
	if err := errors.Join(err, setErr); err != nil || len(servers)+len(sets) > 0 || !errors.Is(linkErr, link.ErrNotFound) {
		t.Errorf("after a cleanup (%q): %v, %v, %v, %v", lines, servers, sets, err, linkErr)
	}
}
