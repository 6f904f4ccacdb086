//go:build linux

package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
)

const (
	rulesFile = "testdata/kube-proxy.rules"
	nftFile   = "testdata/kube-proxy.nft"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

// The messages that are loaded make the rules that people can read.
func TestRecordedRules(t *testing.T) {
	ns := kerneltest.Namespace(t)
	messages, err := parseMessages(recorded)
	if err != nil {
		t.Fatal(err)
	}
	if err := load(ns, messages); err != nil {
		t.Fatal(err)
	}
	if testing.Short() {
		return // the program nft need not be there
	}
	want, err := os.ReadFile(nftFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), listed(t, ns)); diff != "" {
		t.Errorf("in the kernel is something else (-file, +kernel):\n%s", diff)
	}
	if err := load(ns, []message{{number: 200, family: unix.NFPROTO_IPV4}}); err == nil {
		t.Error("no error for a message that cannot be")
	}
}

func TestParseMessages(t *testing.T) {
	want := []message{{0, 2, []byte("one")}, {12, 10, []byte{0, 255}}}
	got, err := parseMessages(want[0].String() + "\n" + want[1].String() + "\n")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(message{})); diff != "" {
		t.Error(diff)
	}
	for bad, why := range map[string]string{
		"1 2":                                "line 1: 2 words",
		"one 2 AA==":                         "line 1: number",
		"1 IPv4 AA==":                        "line 1: family",
		want[0].String() + "\n1 2 (nothing)": "line 2: attributes",
	} {
		if _, err := parseMessages(bad); err == nil || !strings.HasPrefix(err.Error(), why) {
			t.Errorf("%q: %v, want %q", bad, err, why)
		}
	}
}

// listed is what nft says of all rules.
func listed(t *testing.T, ns int) string {
	t.Helper()
	var out []byte
	kerneltest.Do(t, ns, func() (err error) {
		out, err = exec.Command("nft", "-s", "list", "ruleset").Output()
		return err
	})
	return string(out)
}
