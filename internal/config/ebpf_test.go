package config

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

func loadEBPF(t *testing.T, args ...string) (EBPF, []string, error) {
	t.Helper()
	fs := pflag.NewFlagSet("sluice", pflag.ContinueOnError)
	f := NewFlags(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	cfg, warnings, err := f.Load(Env{Hostname: os.Hostname}, Options{Modes: []string{"ebpf", "nftables"}})
	if err != nil {
		return EBPF{}, nil, err
	}
	return cfg.EBPF, warnings, nil
}

func TestEBPF(t *testing.T) {
	for args, want := range map[string]EBPF{
		"": {Dir: "/sys/fs/bpf/sluice"},
		"--bpf-dir=/run/bpf/s --cgroup-root=/sys/fs/cgroup/unified": {"/run/bpf/s", "/sys/fs/cgroup/unified"},
		"--proxy-mode=nftables": {Dir: "/sys/fs/bpf/sluice"}, // what another mode has left is found there
	} {
		got, _, err := loadEBPF(t, strings.Fields(args)...)
		if err != nil {
			t.Errorf("%s: %v", args, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", args, diff)
		}
	}
	for _, args := range []string{"--bpf-dir=sluice", "--bpf-dir=/", "--cgroup-root=/sys/../x"} {
		if _, _, err := loadEBPF(t, args); err == nil || !strings.Contains(err.Error(), "must be an absolute path of a folder") {
			t.Errorf("%s: %v", args, err)
		}
	}
	_, said, err := loadEBPF(t, "--proxy-mode=nftables", "--cgroup-root=/x")
	if err != nil || len(said) != 1 || !strings.Contains(said[0], "--cgroup-root has an effect in mode ebpf and with --cleanup only") {
		t.Errorf("warnings %q, %v", said, err)
	}
}
