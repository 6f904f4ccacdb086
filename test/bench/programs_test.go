//go:build linux

package main

import (
	"bytes"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/ipvs"
)

// The programs write what Sluice would: measurePrograms compares the kernel with it.
func TestMeasurePrograms(t *testing.T) {
	o := options{plane: ipvsPlane, child: 100, changes: 10, dir: t.TempDir()}
	c, err := measurePrograms(o)
	if errors.Is(err, ipvs.ErrAbsent) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	contenders := []contender{c.Sluice}
	if _, err := exec.LookPath("ipvsadm"); err == nil {
		contenders = append(contenders, c.Programs)
	}
	for _, got := range contenders {
		if len(got.Changes) != 10 || got.Cold[virtualServers] <= 0 || got.Cold[ipsets] <= 0 || got.Cold[addresses] <= 0 || got.Cold[rules] <= 0 {
			t.Errorf("a measurement is missing: %+v", got)
		}
	}
}

func TestCommandsOfAPlan(t *testing.T) {
	got := commands("# ip -batch -\nlink add a\n# ipvsadm --restore\n-A -t 1\n# ipvsadm --restore\n-a -t 1\n# ip6tables-restore --noflush\n*nat\n")
	want := []command{{"ip -batch -", "link add a\n"}, {"ipvsadm --restore", "-A -t 1\n-a -t 1\n"}, {"ip6tables-restore --noflush", "*nat\n"}}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got[0].writes() != addresses || got[1].writes() != virtualServers || got[2].writes() != rules {
		t.Error("a command writes something else")
	}
}

func TestProgramsTable(t *testing.T) {
	load := func(d time.Duration) contender {
		return contender{map[mechanism]time.Duration{virtualServers: d}, []time.Duration{d}}
	}
	both := comparison{Sluice: load(time.Millisecond), Programs: load(4 * time.Millisecond), Nothing: []time.Duration{time.Microsecond}}
	var b bytes.Buffer
	if err := errors.Join(printPrograms(&b, 100, []comparison{both}), printPrograms(&b, 200, []comparison{{Sluice: both.Sluice}}),
		printGrowth(&b, []int{100, 200}, [][]comparison{{both}, {both}})); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"| cold load, ms | 1.0 | 4.0 | 0.25 |",
		"| endpoint replaced, p50, µs | 1000 | not measured: no ipvsadm | |",
		"| `ipvsadm --restore` without input, p50, µs | | 1 | |",
		"| Sluice, p50 | 1000 | 1000 | 1.00 |",
	} {
		if !strings.Contains(b.String(), line+"\n") {
			t.Errorf("no line %q in\n%s", line, &b)
		}
	}
}
