package config

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sluice-proxy/sluice/internal/route"
)

func sameQuantity(a, b resource.QuantityValue) bool { return a.Value() == b.Value() }

// A flag that is given wins over the file, one that is not leaves it alone.
func TestPrecedence(t *testing.T) {
	file := header + `
nftables: {syncPeriod: 1m, minSyncPeriod: 3s, masqueradeAll: true}
hostnameOverride: from-file
clusterCIDR: 10.1.0.0/16
nodePortAddresses: [all]
conntrack: {maxPerCore: 5}
featureGates: {AllowServiceExternalIPs: false, NFTablesNetlink: true}
logging: {verbosity: 2, vmodule: [{filePattern: a, verbosity: 1}]}
`
	cfg := mustLoad(t, file,
		"--iptables-min-sync-period=0", "--masquerade-all=false", "--hostname-override=from-flag",
		"--nodeport-addresses=", "--conntrack-max-per-core=0", "--feature-gates=AllowServiceExternalIPs=true",
		"-v=0", "--vmodule=b=2")
	want := defaults()
	want.SyncPeriod = time.Minute
	want.NodeName = "from-flag"
	want.Detector.CIDRs = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
	want.Conntrack.MaxPerCore = 0
	want.FeatureGates = map[string]bool{"AllowServiceExternalIPs": true, "NFTablesNetlink": true}
	want.Logging.VModule = []VModule{{"a", 1}, {"b", 2}}
	if diff := cmp.Diff(want, cfg, compare); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// An empty flag overrides the file.
func TestEmptyFlagWins(t *testing.T) {
	cfg := mustLoad(t, header+"hostnameOverride: a\nclusterCIDR: 10.0.0.0/8\n", "--hostname-override=", "--cluster-cidr=")
	if cfg.NodeName != "host-1" || len(cfg.Detector.CIDRs) != 0 {
		t.Errorf("node %q, cluster %v", cfg.NodeName, cfg.Detector.CIDRs)
	}
}

// Loading again, as after a change of the file, starts afresh.
func TestLoadTwice(t *testing.T) {
	fs := pflag.NewFlagSet("sluice", pflag.ContinueOnError)
	f := NewFlags(fs)
	if err := fs.Parse([]string{"--config=c", "--vmodule=b=2", "--nodeport-addresses=all"}); err != nil {
		t.Fatal(err)
	}
	texts := []string{"logging: {vmodule: [{filePattern: a, verbosity: 1}]}", "mode: nftables"}
	env := Env{
		Hostname: func() (string, error) { return "h", nil },
		ReadFile: func(string) ([]byte, error) { return []byte(header + texts[0]), nil },
	}
	for _, want := range [][]VModule{{{"a", 1}, {"b", 2}}, {{"b", 2}}} {
		cfg, _, err := f.Load(env, Options{Modes: []string{"nftables"}})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(cfg.Logging.VModule, want) {
			t.Errorf("vmodule %v, want %v", cfg.Logging.VModule, want)
		}
		texts = texts[1:]
	}
}

// The same server, in every notation.
func TestServers(t *testing.T) {
	const dump = "configSyncPeriod: 0s\n"
	for _, tc := range []struct {
		name, file, args, healthz, metrics string
	}{
		{"nothing", "", "", "0.0.0.0:10256", "127.0.0.1:10249"},
		{"flags 0", "", "--healthz-bind-address=0 --metrics-bind-address=0", "", ""},
		{"flags empty", "", "--healthz-bind-address= --metrics-bind-address=", "", ""},
		{"flags port 0", "", "--healthz-bind-address=1.1.1.1:0 --metrics-bind-address=[::1]:0", "", ""},
		{"port flags 0", "", "--healthz-port=0 --metrics-port 0", "", ""},
		{"port flags empty", "", "--healthz-port= --metrics-port=", "", ""},
		{
			"port flags complete", "",
			"--healthz-port=1 --metrics-port=2 --healthz-bind-address=1.1.1.1 --metrics-bind-address=::", "1.1.1.1:1", "[::]:2",
		},
		{
			"port flags do not override", "", "--healthz-port=1 --healthz-bind-address=1.1.1.1:7",
			"1.1.1.1:7", "127.0.0.1:10249",
		},
		{"port flag 0 does", "", "--healthz-port=0 --healthz-bind-address=1.1.1.1:7", "", "127.0.0.1:10249"},
		{
			"port flags override the file", "healthzBindAddress: 1.1.1.1:7\nmetricsBindAddress: '[fd00::1]:8'",
			"--healthz-port=1 --metrics-port=2", "1.1.1.1:1", "[fd00::1]:2",
		},
		{"port flags do not bring back", "healthzBindAddress: '0'", "--healthz-port=1", "", "127.0.0.1:10249"},
		{"file 0", "healthzBindAddress: '0'\nmetricsBindAddress: \"0\"", "", "", ""},
		{"file empty", "healthzBindAddress: ''\nmetricsBindAddress: ''", "", "", ""},
		{"file null", "healthzBindAddress: null\nmetricsBindAddress:", "", "0.0.0.0:10256", "127.0.0.1:10249"},
		{"file dumped", dump + "healthzBindAddress: ''\nmetricsBindAddress: ''", "", "0.0.0.0:10256", "127.0.0.1:10249"},
		{"file dumped, 0", dump + "healthzBindAddress: '0'\nmetricsBindAddress: '0'", "", "", ""},
		{
			"file dumped, flags empty", dump + "healthzBindAddress: 1.1.1.1",
			"--healthz-bind-address= --metrics-bind-address=", "", "",
		},
		{
			"flags bring back", "healthzBindAddress: '0'\nmetricsBindAddress: '0'",
			"--healthz-bind-address=1.1.1.1 --metrics-bind-address=[::1]", "1.1.1.1:10256", "[::1]:10249",
		},
		{"leading zeros", "healthzBindAddress: 010.000.0.1", "", "10.0.0.1:10256", "127.0.0.1:10249"},
		{"IPv4 in IPv6", "healthzBindAddress: '[::ffff:10.0.0.1]:5'", "", "10.0.0.1:5", "127.0.0.1:10249"},
		{"IPv6 node", "bindAddress: fd00::1", "", "[::]:10256", "[::1]:10249"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg, _, err := load(t, header+tc.file, strings.Fields(tc.args)...)
			if err != nil {
				t.Fatal(err)
			}
			if cfg.Healthz != endpoint(tc.healthz) || cfg.Metrics != endpoint(tc.metrics) {
				t.Errorf("healthz %v, metrics %v", cfg.Healthz, cfg.Metrics)
			}
			again := mustLoad(t, string(cfg.effective))
			if cfg.Healthz != again.Healthz || cfg.Metrics != again.Metrics {
				t.Errorf("read back: healthz %v, metrics %v", again.Healthz, again.Metrics)
			}
		})
	}
}

func endpoint(text string) netip.AddrPort {
	if text == "" {
		return netip.AddrPort{}
	}
	return netip.MustParseAddrPort(text)
}

// Later data planes are one line; each takes its own section.
func TestModes(t *testing.T) {
	file := header + `
nftables: {syncPeriod: 1m, masqueradeBit: 1}
iptables: {syncPeriod: 2m, masqueradeBit: 2, masqueradeAll: true}
ipvs: {syncPeriod: 3m, minSyncPeriod: 1s}
`
	type settings struct {
		Period, Least time.Duration
		Mark          uint32
		All           bool
		NodePorts     route.NodePortOptions
	}
	primary := route.NodePortOptions{Primary: true}
	all := route.NodePortOptions{All: true, Loopback: route.LoopbackIncluded}
	for mode, want := range map[string]settings{
		"nftables":  {time.Minute, 0, 2, false, primary},
		"ebpf":      {time.Minute, 0, 2, false, primary},
		"iptables":  {2 * time.Minute, 0, 4, true, all},
		"ipvs":      {3 * time.Minute, time.Second, 4, true, route.NodePortOptions{All: true, Loopback: route.LoopbackNever}},
		"userspace": {2 * time.Minute, 0, 4, true, all},
	} {
		fs := pflag.NewFlagSet("sluice", pflag.ContinueOnError)
		f := NewFlags(fs)
		if err := fs.Parse([]string{"--config=c", "--proxy-mode", mode}); err != nil {
			t.Fatal(err)
		}
		env := Env{Hostname: os.Hostname, ReadFile: func(string) ([]byte, error) { return []byte(file), nil }}
		cfg, _, err := f.Load(env, Options{Modes: []string{"nftables", "iptables", "ipvs", "ebpf", "userspace"}})
		if err != nil {
			t.Fatal(err)
		}
		got := settings{cfg.SyncPeriod, cfg.MinSyncPeriod, cfg.MasqueradeMark, cfg.MasqueradeAll, cfg.NodePorts}
		if diff := cmp.Diff(want, got); diff != "" || cfg.Mode != mode {
			t.Errorf("%s (-want +got):\n%s", mode, diff)
		}
	}
}

func TestWarnings(t *testing.T) {
	file := header +
		"udpIdleTimeout: 250ms\nresourceContainer: /kube-proxy\nportRange: 1-9\nclientConnection: {kubeconfig: /k}\n"
	_, warnings, err := load(t, file, "--manifests=-", "--healthz-port=1")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"KubeProxyConfiguration.udpIdleTimeout: no effect: only the mode userspace had UDP sessions; " +
			"use conntrack.udpTimeout for those of the kernel (not in Kubernetes since 1.26) (config.yaml:3)",
		"KubeProxyConfiguration.resourceContainer: no effect: use Slice= in the systemd unit, " +
			"or the resources of the pod (not in Kubernetes since 1.16) (config.yaml:4)",
		"--healthz-port is deprecated, use --healthz-bind-address",
		"clientConnection.kubeconfig is not used: --manifests is set",
		"portRange has an effect in mode userspace only: the mode is nftables",
	}
	if diff := cmp.Diff(want, warnings); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
