package config

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/kube-proxy/config/v1alpha1"

	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/strict"
)

// fieldNames returns the names JSON has for the fields of struct type t.
func fieldNames(t reflect.Type) []string {
	var names []string
	for field := range t.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if field.Anonymous && name == "" {
			names = append(names, fieldNames(field.Type)...)
			continue
		}
		names = append(names, name)
	}
	return names
}

// leaves returns the path of every field of v1alpha1 that has a value of its own.
func leaves() []string {
	return leavesBelow(reflect.ValueOf(&v1alpha1.KubeProxyConfiguration{}).Elem(), "")
}

func leavesBelow(v reflect.Value, path string) []string {
	if isScalar(v) || v.Kind() != reflect.Struct {
		return []string{path}
	}
	var all []string
	for _, name := range fieldNames(v.Type()) {
		f, _ := strict.FieldNamed(v.Type(), name)
		all = append(all, leavesBelow(v.FieldByIndex(f.Index), strings.TrimPrefix(path+"."+name, "."))...)
	}
	return all
}

// A fieldCase sets one field, with the others that it needs, and says what of the Config becomes different.
type fieldCase struct {
	path, value string
	also        string
	want        func(*Config) // nil: nothing, in this mode
	warning     string
}

func fieldCases() []fieldCase {
	return []fieldCase{
		{path: "apiVersion", value: apiVersion},
		{path: "kind", value: kind},
		{path: "featureGates", value: "{AllowServiceExternalIPs: false, KubeProxyIPVS: true}", want: func(c *Config) {
			c.ExternalIPs = false
			c.FeatureGates = map[string]bool{"AllowServiceExternalIPs": false, "KubeProxyIPVS": true}
		}},
		{path: "clientConnection.kubeconfig", value: "/k", want: func(c *Config) { c.Client.Kubeconfig = "/k" }},
		{path: "clientConnection.acceptContentTypes", value: "a/b", want: func(c *Config) {
			c.Client.AcceptContentTypes = "a/b"
		}},
		{path: "clientConnection.contentType", value: "a/c", want: func(c *Config) { c.Client.ContentType = "a/c" }},
		{path: "clientConnection.qps", value: "2.5", want: func(c *Config) { c.Client.QPS = 2.5 }},
		{path: "clientConnection.burst", value: "7", want: func(c *Config) { c.Client.Burst = 7 }},
		{path: "logging.format", value: "json", want: func(c *Config) { c.Logging.Format = "json" }},
		{path: "logging.flushFrequency", value: "2s", want: func(c *Config) { c.Logging.FlushFrequency = 2 * time.Second }},
		{path: "logging.verbosity", value: "3", want: func(c *Config) { c.Logging.Verbosity = 3 }},
		{path: "logging.vmodule", value: "[{filePattern: loop*, verbosity: 4}]", want: func(c *Config) {
			c.Logging.VModule = []VModule{{"loop*", 4}}
		}},
		{path: "logging.options.text.splitStream", value: "true", want: func(c *Config) { c.Logging.SplitStream = true }},
		{path: "logging.options.text.infoBufferSize", value: "64Ki", want: func(c *Config) {
			c.Logging.InfoBufferSize = 65536
		}},
		{path: "logging.options.json.splitStream", value: "true"},
		{path: "logging.options.json.infoBufferSize", value: "1k"},
		{path: "hostnameOverride", value: `"  Node-A "`, want: func(c *Config) { c.NodeName = "node-a" }},
		{path: "bindAddress", value: "fd00::7", want: func(c *Config) {
			c.BindAddress = netip.MustParseAddr("fd00::7")
			c.Healthz, c.Metrics = netip.MustParseAddrPort("[::]:10256"), netip.MustParseAddrPort("[::1]:10249")
		}},
		{path: "healthzBindAddress", value: "10.0.0.1", want: func(c *Config) {
			c.Healthz = netip.MustParseAddrPort("10.0.0.1:10256")
		}},
		{path: "metricsBindAddress", value: "0.0.0.0:9", want: func(c *Config) {
			c.Metrics = netip.MustParseAddrPort("0.0.0.0:9")
		}},
		{path: "bindAddressHardFail", value: "true", want: func(c *Config) { c.HardFail = true }},
		{path: "enableProfiling", value: "true", want: func(c *Config) { c.Profiling = true }},
		{
			path: "showHiddenMetricsForVersion", value: `"1.36"`,
			warning: "showHiddenMetricsForVersion has no effect: no metrics are hidden",
		},
		{path: "mode", value: "nftables"},
		{path: "iptables.masqueradeBit", value: "3"},
		{path: "iptables.masqueradeAll", value: "true"},
		{path: "iptables.localhostNodePorts", value: "false"},
		{path: "iptables.syncPeriod", value: "1m"},
		{path: "iptables.minSyncPeriod", value: "2s"},
		{path: "ipvs.syncPeriod", value: "1m"},
		{path: "ipvs.minSyncPeriod", value: "2s"},
		{path: "ipvs.scheduler", value: "wrr", want: func(c *Config) { c.Scheduler = "wrr" }},
		{path: "ipvs.excludeCIDRs", value: "[10.0.0.0/8]"},
		{path: "ipvs.strictARP", value: "true"},
		{path: "ipvs.tcpTimeout", value: "1s"},
		{path: "ipvs.tcpFinTimeout", value: "1s"},
		{path: "ipvs.udpTimeout", value: "1s"},
		{path: "nftables.masqueradeBit", value: "0", want: func(c *Config) { c.MasqueradeMark = 1 }},
		{path: "nftables.masqueradeAll", value: "true", want: func(c *Config) { c.MasqueradeAll = true }},
		{path: "nftables.syncPeriod", value: "1m", want: func(c *Config) { c.SyncPeriod = time.Minute }},
		{path: "nftables.minSyncPeriod", value: "2s", want: func(c *Config) { c.MinSyncPeriod = 2 * time.Second }},
		{path: "winkernel.networkName", value: "net", want: func(c *Config) { c.HNS.Network = "net" }},
		{path: "winkernel.sourceVip", value: "10.0.0.9", want: func(c *Config) {
			c.HNS.SourceVIP = netip.MustParseAddr("10.0.0.9")
		}},
		{path: "winkernel.enableDSR", value: "true", want: func(c *Config) { c.HNS.DSR = true }},
		{path: "winkernel.rootHnsEndpointName", value: "r", want: func(c *Config) { c.HNS.RootEndpoint = "r" }},
		{path: "winkernel.forwardHealthCheckVip", value: "true", want: func(c *Config) { c.HNS.ForwardHealthCheck = true }},
		{path: "detectLocalMode", value: "NodeCIDR", want: func(c *Config) { c.Detector.Kind = route.DetectNodeCIDR }},
		{path: "detectLocal.bridgeInterface", value: "cni0", also: "detectLocalMode: BridgeInterface", want: func(c *Config) {
			c.Detector = route.DetectorOptions{Kind: route.DetectBridge, Interface: "cni0"}
		}},
		{
			path: "detectLocal.interfaceNamePrefix", value: "veth",
			also: "detectLocalMode: InterfaceNamePrefix", want: func(c *Config) {
				c.Detector = route.DetectorOptions{Kind: route.DetectInterfacePrefix, Interface: "veth"}
			},
		},
		{path: "clusterCIDR", value: `"10.1.0.0/16, fd00::/48,010.2.3.4/16"`, want: func(c *Config) {
			c.Detector.CIDRs = []netip.Prefix{
				netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/48"), netip.MustParsePrefix("10.2.0.0/16"),
			}
		}},
		{path: "nodePortAddresses", value: "[192.168.0.0/16, all, localhost, 192.168.0.0/16]", want: func(c *Config) {
			private := netip.MustParsePrefix("192.168.0.0/16")
			c.NodePorts = route.NodePortOptions{All: true, Localhost: true, CIDRs: []netip.Prefix{private}}
		}},
		{path: "oomScoreAdj", value: "0", want: func(c *Config) { c.OOMScoreAdj = 0 }},
		{path: "conntrack.maxPerCore", value: "0", want: func(c *Config) { c.Conntrack.MaxPerCore = 0 }},
		{path: "conntrack.min", value: "5", want: func(c *Config) { c.Conntrack.Min = 5 }},
		{path: "conntrack.tcpEstablishedTimeout", value: "0s", want: func(c *Config) { c.Conntrack.TCPEstablished = 0 }},
		{path: "conntrack.tcpCloseWaitTimeout", value: "1m", want: func(c *Config) {
			c.Conntrack.TCPCloseWait = time.Minute
		}},
		{path: "conntrack.tcpBeLiberal", value: "yes", want: func(c *Config) { c.Conntrack.TCPBeLiberal = true }},
		{path: "conntrack.udpTimeout", value: "1m", want: func(c *Config) { c.Conntrack.UDP = time.Minute }},
		{path: "conntrack.udpStreamTimeout", value: "1m", want: func(c *Config) { c.Conntrack.UDPStream = time.Minute }},
		{path: "configSyncPeriod", value: "1m"},
		{
			path: "portRange", value: "1-2",
			warning: "portRange has an effect in mode userspace only: the mode is nftables",
		},
		{path: "windowsRunAsService", value: "true", want: func(c *Config) { c.WindowsService = true }},
	}
}

// nested writes path and value as YAML.
func nested(path, value string) string {
	var b strings.Builder
	names := strings.Split(path, ".")
	for i, name := range names {
		fmt.Fprintf(&b, "%s%s:", strings.Repeat("  ", i), name)
		if i < len(names)-1 {
			b.WriteString("\n")
		}
	}
	return b.String() + " " + value + "\n"
}

func TestFields(t *testing.T) {
	tested := map[string]bool{}
	for _, tc := range fieldCases() {
		tested[tc.path] = true
		t.Run(tc.path, func(t *testing.T) { testField(t, tc) })
	}
	for _, path := range leaves() {
		if !tested[path] {
			t.Errorf("v1alpha1 has a field nobody here knows: %s", path)
		}
	}
}

func testField(t *testing.T, tc fieldCase) {
	file := header + nested(tc.path, tc.value) + tc.also
	if tc.path == "apiVersion" || tc.path == "kind" {
		file = header
	}
	got, warnings, err := load(t, file)
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
	again, _, err := load(t, string(got.effective))
	if err != nil {
		t.Fatalf("read back: %v\n%s", err, got.effective)
	}
	if diff := cmp.Diff(got, again, compare); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
	wasSaid(t, tc.path, file, string(got.effective))
}

// wasSaid checks that a field of file has the same value in effective; some are written in another way there.
func wasSaid(t *testing.T, path, file, effective string) {
	t.Helper()
	if path == "healthzBindAddress" {
		return
	}
	var values []any
	for _, text := range []string{file, effective} {
		doc, err := decode("f", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		values = append(values,
			fmt.Sprintf("%+v", reflect.Indirect(fieldAt(reflect.ValueOf(&doc.config).Elem(), path)).Interface()))
	}
	if values[0] != values[1] {
		t.Errorf("effective %s is %s, said was %s", path, values[1], values[0])
	}
}
