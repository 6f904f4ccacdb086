package config

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/sluice-proxy/sluice/internal/route"
)

// onWindows loads a configuration on a system with kube-proxy's mode for Windows.
func onWindows(t *testing.T, env map[string]string, args ...string) (*Config, error) {
	t.Helper()
	fs := pflag.NewFlagSet("sluice", pflag.ContinueOnError)
	f := NewFlags(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	cfg, _, err := f.Load(Env{
		Hostname: func() (string, error) { return "host-1", nil }, Getenv: func(name string) string { return env[name] },
	}, Options{Modes: []string{kernelspaceMode, userspaceMode}})
	return cfg, err
}

// The mode kernelspace has kube-proxy's defaults: all addresses serve NodePorts, and the environment names
// the network unless the configuration does.
func TestKernelspace(t *testing.T) {
	env := map[string]string{networkVariable: "flannel.4096"}
	cfg, err := onWindows(t, env)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(HNS{Network: "flannel.4096", RootEndpoint: "cbr0"}, cfg.HNS, compare); diff != "" {
		t.Error(diff)
	}
	if cfg.Mode != kernelspaceMode || !cfg.NodePorts.All || cfg.NodePorts.Loopback != route.LoopbackNever {
		t.Errorf("%+v", cfg)
	}
	cfg, err = onWindows(t, env, "--network-name=l2", "--source-vip=10.0.0.9", "--enable-dsr",
		"--root-hnsendpoint-name=r", "--forward-healthcheck-vip")
	if err != nil {
		t.Fatal(err)
	}
	want := HNS{
		Network: "l2", SourceVIP: netip.MustParseAddr("10.0.0.9"), DSR: true, RootEndpoint: "r", ForwardHealthCheck: true,
	}
	if diff := cmp.Diff(want, cfg.HNS, compare); diff != "" {
		t.Error(diff)
	}
	if _, err := onWindows(t, env, "--source-vip=here"); err == nil ||
		!strings.Contains(err.Error(), "--source-vip: Invalid value: \"here\"") {
		t.Error(err)
	}
	if cfg, err = onWindows(t, env, "--source-vip=here", "--proxy-mode=userspace"); err != nil || cfg.HNS.Network != "" {
		t.Error("another mode:", cfg, err)
	}
}
