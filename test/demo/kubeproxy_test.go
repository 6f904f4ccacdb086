//go:build linux

package main

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
	"github.com/sluice-proxy/sluice/test/lab"
)

const (
	rulesFile = "testdata/kube-proxy.rules"
	nftFile   = "testdata/kube-proxy.nft"
)

func TestMain(m *testing.M) {
	lab.RaisePriority()
	os.Exit(kerneltest.Main(m))
}

// The recorded messages create the rules of the readable file.
func TestRecordedRules(t *testing.T) {
	ns := kerneltest.Namespace(t)
	kerneltest.Do(t, ns, func() error { return sendAll(recorded) })
	if testing.Short() {
		return // nft may not be installed
	}
	want, err := os.ReadFile(nftFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), listed(t, ns)); diff != "" {
		t.Errorf("in the kernel is something else (-file, +kernel):\n%s", diff)
	}
}

// An error of the kernel is returned: the last rule alone has no table.
func TestRulesWithoutTable(t *testing.T) {
	lines := strings.SplitAfter(strings.TrimSpace(recorded), "\n")
	alone := lines[0] + lines[len(lines)-2] + lines[len(lines)-1]
	kerneltest.Do(t, kerneltest.Namespace(t), func() error {
		if err := sendAll(alone); !errors.Is(err, unix.ENOENT) {
			t.Errorf("got %v, want ENOENT", err)
		}
		return nil
	})
	if err := sendAll("?"); err == nil {
		t.Error("no error for a line that is not base64")
	}
}

// listed returns all rules as nft lists them.
func listed(t *testing.T, ns int) string {
	t.Helper()
	var out []byte
	kerneltest.Do(t, ns, func() (err error) {
		out, err = exec.Command("nft", "-s", "list", "ruleset").Output()
		return err
	})
	return string(out)
}
