package conntrack_test

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
	"github.com/sluice-proxy/sluice/internal/testing/conntracktest"
)

func TestLoad(t *testing.T) {
	table := conntracktest.Open(t)
	before, err := table.Load()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range []conntrack.Entry{
		flow(conntrack.TCP, "192.0.2.1:1", "192.0.2.2:80", "192.0.2.3:80"),
		flow(conntrack.UDP, "[2001:db8::1]:1", "[2001:db8::2]:53", "[2001:db8::2]:53"),
	} {
		if err := table.Create(e); err != nil {
			t.Fatal(err)
		}
	}
	got, err := table.Load()
	if err != nil {
		t.Fatal(err)
	}
	want := conntrack.Load{Entries: before.Entries + 2, Limit: parameter(t, "nf_conntrack_max")}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// parameter reads a number below /proc/sys/net/netfilter.
func parameter(t *testing.T, name string) uint32 {
	t.Helper()
	text, err := os.ReadFile("/proc/sys/net/netfilter/" + name)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(n)
}
