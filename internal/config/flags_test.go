package config

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spf13/pflag"

	"github.com/sluice-proxy/sluice/internal/cluster"

	"github.com/sluice-proxy/sluice/internal/route"
)

// A flagCase gives one flag and says what of the Config becomes different.
type flagCase struct {
	args    string
	want    func(*Config) // nil: nothing, in this mode
	warning string
}

func flagCases() []flagCase {
	return append(settings(), passing()...)
}

// settings are flags that change something in nftables mode.
func settings() []flagCase {
	return []flagCase{
		{args: "--manifests=a,b --manifests -", want: func(c *Config) { c.Manifests = []string{"a,b", "-"} }},
		{args: "--kubeconfig=/k", want: func(c *Config) { c.Client.Kubeconfig = "/k" }},
		{args: "--cluster-cidr=10.1.0.0/16,fd00::/48", want: func(c *Config) {
			c.Detector.CIDRs = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/48")}
		}},
		{args: "--nodeport-addresses=localhost,10.0.0.0/8 --nodeport-addresses=primary", want: func(c *Config) {
			private := netip.MustParsePrefix("10.0.0.0/8")
			c.NodePorts = route.NodePortOptions{Primary: true, Localhost: true, CIDRs: []netip.Prefix{private}}
		}},
		{args: "--hostname-override=Node-A", want: func(c *Config) { c.NodeName = "node-a" }},
		{args: "-v 4", want: func(c *Config) { c.Logging.Verbosity = 4 }},
		{args: "--v=5", want: func(c *Config) { c.Logging.Verbosity = 5 }},
		{args: "--detect-local-mode=NodeCIDR", want: func(c *Config) { c.Detector.Kind = route.DetectNodeCIDR }},
		{args: "--detect-local-mode=BridgeInterface --pod-bridge-interface=cni0", want: func(c *Config) {
			c.Detector = route.DetectorOptions{Kind: route.DetectBridge, Interface: "cni0"}
		}},
		{args: "--detect-local-mode=InterfaceNamePrefix --pod-interface-name-prefix=veth", want: func(c *Config) {
			c.Detector = route.DetectorOptions{Kind: route.DetectInterfacePrefix, Interface: "veth"}
		}},
		{args: "--masquerade-all", want: func(c *Config) { c.MasqueradeAll = true }},
		{args: "--bind-address=fd00::7", want: func(c *Config) {
			c.BindAddress = netip.MustParseAddr("fd00::7")
			c.Healthz, c.Metrics = netip.MustParseAddrPort("[::]:10256"), netip.MustParseAddrPort("[::1]:10249")
		}},
		{args: "--feature-gates=AllowServiceExternalIPs=false --feature-gates=WinDSR=true", want: func(c *Config) {
			c.ExternalIPs = false
			c.FeatureGates = map[string]bool{"AllowServiceExternalIPs": false, "WinDSR": true}
		}},
		{args: "--healthz-bind-address=10.0.0.1", want: func(c *Config) {
			c.Healthz = netip.MustParseAddrPort("10.0.0.1:10256")
		}},
		{args: "--metrics-bind-address=0.0.0.0:9", want: func(c *Config) {
			c.Metrics = netip.MustParseAddrPort("0.0.0.0:9")
		}},
		{args: "--bind-address-hard-fail", want: func(c *Config) { c.HardFail = true }},
		{args: "--drain-bind-address=192.0.2.1:10261", want: func(c *Config) {
			c.Drain = netip.MustParseAddrPort("192.0.2.1:10261")
		}},
		{args: "--profiling=true", want: func(c *Config) { c.Profiling = true }},
		{args: "--version", want: func(c *Config) { c.Version.Print = "true" }},
		{args: "--version=raw", want: func(c *Config) { c.Version.Print = "raw" }},
		{args: "--version=v1.37.0-x", want: func(c *Config) { c.Version.Report = "v1.37.0-x" }},
		{args: "--write-config-to=/w", want: func(c *Config) { c.WriteConfigTo = "/w" }},
		{args: "--cleanup", want: func(c *Config) { c.Cleanup = true }},
		{args: "--external=direct", want: func(c *Config) { c.Direct = true }},
		{args: "--ejection=on", want: func(c *Config) { c.Ejection = cluster.Ejection{Clients: 2, Row: 5} }},
		{args: "--direct-tunnel-port=10264", want: func(c *Config) { c.DirectTunnel = 10264 }},
		{args: "--reload-jitter=5m", want: func(c *Config) { c.ReloadJitter = 5 * time.Minute }},
		{args: "--ignore-kube-proxy", want: func(c *Config) { c.IgnoreKubeProxy = true }},
		{args: "--init-only", want: func(c *Config) { c.InitOnly = true }},
		{args: "--oom-score-adj=-5", want: func(c *Config) { c.OOMScoreAdj = -5 }},
		{args: "--conntrack-max-per-core=0", want: func(c *Config) { c.Conntrack.MaxPerCore = 0 }},
		{args: "--conntrack-min=9", want: func(c *Config) { c.Conntrack.Min = 9 }},
		{args: "--conntrack-tcp-timeout-established=0", want: func(c *Config) { c.Conntrack.TCPEstablished = 0 }},
		{args: "--conntrack-tcp-timeout-close-wait=5m", want: func(c *Config) { c.Conntrack.TCPCloseWait = 5 * time.Minute }},
		{args: "--conntrack-tcp-be-liberal", want: func(c *Config) { c.Conntrack.TCPBeLiberal = true }},
		{args: "--conntrack-udp-timeout=9s", want: func(c *Config) { c.Conntrack.UDP = 9 * time.Second }},
		{args: "--conntrack-udp-timeout-stream=9s", want: func(c *Config) { c.Conntrack.UDPStream = 9 * time.Second }},
		{args: "--master=https://10.0.0.1:6443", want: func(c *Config) { c.Client.Master = "https://10.0.0.1:6443" }},
		{args: "--kube-api-content-type=application/json", want: func(c *Config) {
			c.Client.ContentType = "application/json"
		}},
		{args: "--kube-api-qps=-1", want: func(c *Config) { c.Client.QPS = -1 }},
		{args: "--kube-api-burst=20", want: func(c *Config) { c.Client.Burst = 20 }},
		{args: "--config-sync-period=1h"},
		{args: "--iptables-sync-period=1m", want: func(c *Config) { c.SyncPeriod = time.Minute }},
		{args: "--iptables-min-sync-period=10s", want: func(c *Config) { c.MinSyncPeriod = 10 * time.Second }},
		{args: "--logging-format=json", want: func(c *Config) { c.Logging.Format = "json" }},
		{args: "--vmodule=loop*=4,a=1", want: func(c *Config) { c.Logging.VModule = []VModule{{"loop*", 4}, {"a", 1}} }},
		{args: "--log-flush-frequency=1s", want: func(c *Config) { c.Logging.FlushFrequency = time.Second }},
		{args: "--log-text-split-stream", want: func(c *Config) { c.Logging.SplitStream = true }},
		{args: "--log-text-info-buffer-size=1Ki", want: func(c *Config) { c.Logging.InfoBufferSize = 1024 }},
		{
			args: "--healthz-port=9", want: func(c *Config) { c.Healthz = netip.MustParseAddrPort("0.0.0.0:9") },
			warning: "--healthz-port is deprecated, use --healthz-bind-address",
		},
		{
			args: "--metrics-port=9", want: func(c *Config) { c.Metrics = netip.MustParseAddrPort("127.0.0.1:9") },
			warning: "--metrics-port is deprecated, use --metrics-bind-address",
		},
		{args: "--cluster_cidr=10.1.0.0/16", want: func(c *Config) {
			c.Detector.CIDRs = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
		}},
	}
}

// passing are flags of other modes, and those that say the default.
func passing() []flagCase {
	return []flagCase{
		{args: "--config="},
		{args: "--proxy-mode=nftables"},
		{args: "--bind-address="},
		{args: "--version=false"},
		{args: "--log-json-split-stream"},
		{args: "--log-json-info-buffer-size=1Ki"},
		{args: "--iptables-masquerade-bit=3"},
		{args: "--iptables-localhost-nodeports=false"},
		{args: "--ipvs-sync-period=5s"},
		{args: "--ipvs-min-sync-period=5s"},
		{args: "--ipvs-scheduler=wrr", want: func(c *Config) { c.Scheduler = "wrr" }},
		{args: "--ipvs-exclude-cidrs=10.0.0.0/8"},
		{args: "--ipvs-strict-arp"},
		{args: "--ipvs-tcp-timeout=5s"},
		{args: "--ipvs-tcpfin-timeout=5s"},
		{args: "--ipvs-udp-timeout=5s"},
		{
			args:    "--proxy-port-range=30000-30100",
			warning: "--proxy-port-range has an effect in mode userspace only: the mode is nftables",
		},
		{args: "--proxy-port-range=0-0"},
		{args: "--proxy-port-range="},
		{
			args: "--udp-timeout=1s",
			warning: "--udp-timeout has an effect in mode userspace only: the mode is nftables; " +
				"use --conntrack-udp-timeout for flows in the kernel",
		},
		{args: "--udp-timeout=250ms"},
		{
			args:    "--scheduler=lc",
			warning: "--scheduler has an effect in mode userspace only: the mode is nftables; other modes have --ipvs-scheduler",
		},
		{
			args: "--proxy-mode=iptables --external=direct",
			want: func(c *Config) {
				c.Mode, c.Direct, c.NodePorts = "iptables", true, route.NodePortOptions{All: true, Loopback: route.LoopbackIncluded}
			},
			warning: "--external has an effect in mode nftables only: the mode is iptables",
		},
		{args: "--drain-timeout=1m", warning: "--drain-timeout has an effect in mode userspace only: the mode is nftables"},
		{args: "--windows-service", want: func(c *Config) { c.WindowsService = true }},
		{args: "--windows-service --log-file=/l", want: func(c *Config) { c.WindowsService, c.Logging.File = true, "/l" }},
		{args: "--external-ip-ranges=198.51.100.0/24,2001:db8::/32", want: func(c *Config) {
			c.ExternalIPRanges = []netip.Prefix{
				netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("2001:db8::/32"),
			}
		}},
		{args: "--load-balancer-ip-ranges=203.0.113.0/24", want: func(c *Config) {
			c.LoadBalancerIPRanges = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
		}},
		{args: "--source-vip=10.0.0.9", want: func(c *Config) { c.HNS.SourceVIP = netip.MustParseAddr("10.0.0.9") }},
		{args: "--network-name=n", want: func(c *Config) { c.HNS.Network = "n" }},
		{args: "--enable-dsr", want: func(c *Config) { c.HNS.DSR = true }},
		{args: "--root-hnsendpoint-name=r", want: func(c *Config) { c.HNS.RootEndpoint = "r" }},
		{args: "--forward-healthcheck-vip", want: func(c *Config) { c.HNS.ForwardHealthCheck = true }},
		{
			args:    "--show-hidden-metrics-for-version=1.36",
			warning: "--show-hidden-metrics-for-version has no effect: no metrics are hidden",
		},
	}
}

func TestFlags(t *testing.T) {
	// TestUserspace, TestEBPF
	tested := map[string]bool{
		"v": true, "bind": true, "drain-timeout": true, "bpf-dir": true, "cgroup-root": true,
		"exempt-cgroups": true,
	}
	for _, tc := range flagCases() {
		for arg := range strings.FieldsSeq(tc.args) {
			name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
			tested[name] = true
		}
		t.Run(tc.args, func(t *testing.T) {
			got, warnings, err := load(t, "", strings.Fields(tc.args)...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.warning, strings.Join(warnings, "\n")); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
			want := defaults()
			if tc.want != nil {
				tc.want(want)
			}
			if diff := cmp.Diff(want, got, compare); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	flagSet().VisitAll(func(f *pflag.Flag) {
		if !tested[f.Name] && !f.Hidden {
			t.Errorf("no test for --%s", f.Name)
		}
	})
}

func flagSet() *pflag.FlagSet {
	fs := pflag.NewFlagSet("sluice", pflag.ContinueOnError)
	NewFlags(fs)
	return fs
}

// Each flag is below one heading, has a short help text, and shows the default that is in force.
func TestHelp(t *testing.T) {
	groups := map[string]int{}
	for _, g := range Groups() {
		for _, name := range g.Flags {
			groups[name]++
		}
	}
	fields := map[string][]string{}
	for _, g := range Groups() {
		for _, def := range g.defs {
			fields[def.name] = def.fields()
		}
	}
	doc, err := decode("effective", mustLoad(t, "").effective)
	if err != nil {
		t.Fatal(err)
	}
	flagSet().VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		if groups[f.Name] != 1 {
			t.Errorf("--%s is in %d groups", f.Name, groups[f.Name])
		}
		delete(groups, f.Name)
		if n := len(f.Usage); n < 5 || n > 110 || strings.HasSuffix(f.Usage, ".") {
			t.Errorf("--%s: help of %d bytes: %s", f.Name, n, f.Usage)
		}
		for _, path := range fields[f.Name] {
			checkShown(t, f, fieldAt(reflect.ValueOf(doc.config), path))
		}
	})
	if len(groups) > 0 {
		t.Errorf("no such flags: %v", slices.Sorted(maps.Keys(groups)))
	}
}

// unset are flags whose default is decided elsewhere, and shown as a hint.
func unset(name string) bool {
	return name == "proxy-mode" || name == "root-hnsendpoint-name"
}

func checkShown(t *testing.T, f *pflag.Flag, effective reflect.Value) {
	t.Helper()
	if unset(f.Name) {
		return
	}
	shown := reflect.New(effective.Type()).Elem()
	if f.DefValue != "" {
		if err := setText(shown, f.DefValue); err != nil {
			t.Fatalf("--%s: default %q: %v", f.Name, f.DefValue, err)
		}
	}
	if text := f.Value.String(); text != f.DefValue {
		t.Errorf("--%s: value %q before it is given, default %q", f.Name, text, f.DefValue)
	}
	if diff := cmp.Diff(effective.Interface(), shown.Interface(), compare, cmp.Comparer(sameQuantity)); diff != "" {
		t.Errorf("--%s: default (-effective +shown):\n%s", f.Name, diff)
	}
}

// Other packages build help and completion on these.
func TestHelpText(t *testing.T) {
	usage := flagSet().FlagUsages()
	for _, want := range []string{
		"--nodeport-addresses list", `(default primary)`, "-v, --v int", "--cleanup ", "--manifests path",
		"--iptables-sync-period duration", "--feature-gates Name=bool,...",
		"--vmodule pattern=N,...", "--version version[=true]",
		"--log-text-info-buffer-size quantity", "--kube-api-qps number", "--config string",
	} {
		if !strings.Contains(usage, want) {
			t.Errorf("no %q in the help:\n%s", want, usage)
		}
	}
}
