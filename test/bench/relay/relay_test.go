//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/machine"
)

// TestMain also runs the processes that the benchmark starts: backend and clients.
func TestMain(m *testing.M) {
	switch err := runRole(os.Args[1:]); {
	case errors.Is(err, errNoRole):
		harness.Main(m)
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// A short run measures direct connections and the planes of Sluice, and nothing fails.
func TestRun(t *testing.T) {
	t.Setenv("GORACE", "atexit_sleep_ms=0") // each process of clients would wait for a second at its end
	o, err := parse(strings.Fields("-rounds 1 -connections 1,20 -proxies direct,nftables,userspace,userspace-rules"),
		t.Output())
	if err != nil {
		t.Fatal(err)
	}
	o.time = machine.Scale(200 * time.Millisecond) // beside other work nothing was done in 100 ms
	var out strings.Builder
	if err := run(o, &out); err != nil {
		t.Fatal(err)
	}
	t.Log(out.String())
	for line := range strings.Lines(out.String()) {
		if strings.Contains(line, "/s") && strings.Contains(line, " 0.00 (") {
			t.Errorf("nothing was done: %s", line)
		}
	}
	for _, want := range []string{
		"| | direct | nftables | userspace | userspace-rules |\n", "| kept connections: 20, requests/s |",
		"| streams: 4, MB/s |", "| clients: 1, new connections/s |", "| clients: 20, new connections/s |",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("there is no %q", want)
		}
	}
	if strings.Contains(out.String(), "failed") {
		t.Error("some requests failed")
	}
}

// With a range of local ports, only new connections are measured.
func TestPorts(t *testing.T) {
	o, err := parse(strings.Fields("-ports 32768-60999 -connections 1,20"), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	if want := []work{{connects, 1}, {connects, 20}}; !slices.Equal(works(o), want) || o.ports != "32768 60999" {
		t.Errorf("ports %q, works %v, want %v", o.ports, works(o), want)
	}
	if _, err := parse([]string{"-ports", "many"}, t.Output()); err == nil {
		t.Error("a range without numbers is accepted")
	}
}
