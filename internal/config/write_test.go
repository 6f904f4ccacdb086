package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What --write-config-to writes has flags and defaults in it, and means the same when it is read.
func TestWriteAndReadBack(t *testing.T) {
	file := filepath.Join(t.TempDir(), "out.yaml")
	args := []string{
		"--cluster-cidr=10.0.0.0/8", "--iptables-min-sync-period=2s", "--metrics-bind-address=",
		"--feature-gates=WinDSR=true",
		"--hostname-override=N", "--vmodule=a=1", "--log-flush-frequency=1s",
		"--nodeport-addresses=primary,10.0.0.0/8", "--healthz-port=7",
	}
	cfg, _, err := load(t, "", append(args, "--write-config-to="+file)...)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time over the existing file
		if err := cfg.Write(); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	again := mustLoad(t, string(text))
	cfg.WriteConfigTo = ""
	if diff := cmp.Diff(cfg, again, compare); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode() != 0o644 {
		t.Errorf("mode %v, error %v", info.Mode(), err)
	}
}

// The defaults, in full.
func TestEffectiveGolden(t *testing.T) {
	golden(t, "testdata/effective.txt", string(mustLoad(t, "").effective))
}

// A link is written through, as one that leads to a pipe or a device must be.
func TestWriteThroughLink(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := os.WriteFile(file, []byte(strings.Repeat("long ", 2000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	cfg := mustLoad(t, "", "--write-config-to="+link)
	if err := cfg.Write(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil || string(text) != string(cfg.effective) {
		t.Errorf("error %v, file:\n%s", err, text)
	}
}

// A place that cannot be written is an error, and nothing is left behind.
func TestWriteFails(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{filepath.Join(dir, "gone", "file"), dir} {
		cfg := mustLoad(t, "", "--write-config-to="+name)
		if err := cfg.Write(); err == nil || !strings.HasPrefix(err.Error(), "write configuration: ") {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
