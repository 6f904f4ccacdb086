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
	resolved := []string{"system.slice/systemd-resolved.service"}
	for args, want := range map[string]EBPF{
		"":                  {Dir: "/sys/fs/bpf/sluice", ExemptCgroups: resolved},
		"--exempt-cgroups=": {Dir: "/sys/fs/bpf/sluice"},
		"--bpf-dir=/run/bpf/s --cgroup-root=/sys/fs/cgroup/unified": {
			Dir: "/run/bpf/s", Cgroup: "/sys/fs/cgroup/unified", ExemptCgroups: resolved,
		},
		"--exempt-cgroups=system.slice/nfs-*,/,mesh/*/proxy": {
			Dir: "/sys/fs/bpf/sluice", ExemptCgroups: []string{"system.slice/nfs-*", "mesh/*/proxy"},
			ExemptRoot: true,
		},
		// Another mode needs the folder to remove what mode ebpf left.
		"--proxy-mode=nftables": {Dir: "/sys/fs/bpf/sluice", ExemptCgroups: resolved},
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
		if _, _, err := loadEBPF(t, args); err == nil ||
			!strings.Contains(err.Error(), "must be an absolute path of a folder") {
			t.Errorf("%s: %v", args, err)
		}
	}
	for _, pattern := range []string{"/system.slice", "a/../b", "..", ".", "a//b", "[", "a/"} {
		if _, _, err := loadEBPF(t, "--exempt-cgroups=ok,"+pattern); err == nil ||
			!strings.Contains(err.Error(), "a pattern of a path in the cgroup root") {
			t.Errorf("%s: %v", pattern, err)
		}
	}
	for args, want := range map[string]string{
		"--proxy-mode=nftables --cgroup-root=/x":   "--cgroup-root has an effect in mode ebpf only",
		"--proxy-mode=nftables --exempt-cgroups=x": "--exempt-cgroups has an effect in mode ebpf only",
	} {
		_, said, err := loadEBPF(t, strings.Fields(args)...)
		if err != nil || len(said) != 1 || !strings.Contains(said[0], want) {
			t.Errorf("%s: warnings %q, %v, want %q", args, said, err, want)
		}
	}
}
