package config

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// Combinations of settings, valid and invalid ones.
func TestCombinations(t *testing.T) {
	for _, tc := range []struct{ name, file, args, want string }{
		{"manifests and a file", header + "clientConnection: {kubeconfig: /k}", "--manifests=a", ""},
		{
			"manifests and kubeconfig", "", "--manifests=a --kubeconfig=/k",
			"--manifests: Forbidden: cannot be used together with --kubeconfig",
		},
		{
			"manifests and master", "", "--manifests=a --master=m",
			"--manifests: Forbidden: cannot be used together with --master",
		},
		{"manifests and no kubeconfig", "", "--manifests=a --kubeconfig= --master=", ""},
		{"empty manifests", "", "--manifests=", "--manifests: Required value"},
		{"folder, file, input", "", "--manifests=a --manifests=b --manifests=-", ""},
		{"one twice", "", "--manifests=a --manifests=a", `--manifests: Duplicate value: "a"`},
		{"cleanup and init", "", "--cleanup --init-only", "--cleanup: Forbidden"},
		{"kubeconfig and master", "", "--kubeconfig=/k --master=m", ""},
		{"write and cleanup", "", "--write-config-to=/w --cleanup", ""},
		{"json and vmodule", "", "--logging-format=json --vmodule=a=1", "--vmodule: Forbidden"},
		{
			"json and the file's vmodule", header + "logging: {vmodule: [{filePattern: a, verbosity: 1}]}",
			"--logging-format=json --vmodule=a=1",
			"KubeProxyConfiguration.logging.vmodule: Forbidden: only the text format can log by source file (config.yaml:3)",
		},
		{
			"least above the period", "", "--iptables-min-sync-period=31s",
			"--iptables-min-sync-period: Invalid value: 31s: must be at most nftables.syncPeriod, which is 30s",
		},
		{"least equals the period", "", "--iptables-min-sync-period=30s", ""},
		{"one hour", "", "--iptables-min-sync-period=1h --iptables-sync-period=2h", ""},
		{
			"file's period, flag's least", header + "nftables: {syncPeriod: 5s}", "--iptables-min-sync-period=6s",
			"--iptables-min-sync-period: Invalid value: 6s",
		},
		{
			"other mode's mistakes",
			header + "ipvs: {minSyncPeriod: 5h, excludeCIDRs: [x], tcpTimeout: -1s}\niptables: {syncPeriod: -1s}", "", "",
		},
		{
			"the bit that modes share", header + "iptables: {masqueradeBit: 40}", "",
			"configuration: KubeProxyConfiguration.iptables.masqueradeBit: Invalid value: 40: must be 0 to 31 (config.yaml:3)",
		},
		{
			"the bit that modes share, by flag", "", "--iptables-masquerade-bit=40",
			"configuration: --iptables-masquerade-bit: Invalid value: 40: must be 0 to 31",
		},
		{"detector's other options", header + "detectLocal: {bridgeInterface: 'not looked at in this mode'}", "", ""},
		{"cluster range of another detector", "", "--detect-local-mode=NodeCIDR --cluster-cidr=x", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, _, err := load(t, tc.file, strings.Fields(tc.args)...)
			switch {
			case err == nil && tc.want == "":
			case err == nil:
				t.Error("no error")
			case tc.want == "" || !strings.Contains(err.Error(), tc.want):
				t.Errorf("error %v", err)
			}
		})
	}
}

// A build without the chosen data plane says which it has.
func TestModeIsNotInThisBuild(t *testing.T) {
	for _, tc := range []struct{ args, modes, want string }{
		{
			"--proxy-mode=ebpf", "nftables",
			`--proxy-mode: Unsupported value: "ebpf": must be one of nftables`,
		},
		{
			"--proxy-mode=IPVS", "nftables,ipvs",
			`--proxy-mode: Unsupported value: "IPVS": must be one of nftables, ipvs, did you mean ipvs?`,
		},
		{
			"--proxy-mode=ipvs --feature-gates=KubeProxyIPVS=false", "nftables,ipvs",
			`--proxy-mode: Invalid value: "ipvs": the feature gate KubeProxyIPVS is off`,
		},
	} {
		fs := pflag.NewFlagSet("sluice", pflag.ContinueOnError)
		f := NewFlags(fs)
		if err := fs.Parse(strings.Fields(tc.args)); err != nil {
			t.Fatal(err)
		}
		_, _, err := f.Load(Env{Hostname: os.Hostname, ReadFile: ReadFile}, Options{Modes: splitList(tc.modes)})
		if err == nil || err.Error() != "configuration: "+tc.want {
			t.Errorf("%s: error %v", tc.args, err)
		}
	}
}

// kube-proxy 1.0 to 1.6 answered health checks on the port that metrics have since 1.7, and unit files say so.
func TestServersOnOnePort(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{
			"--healthz-bind-address=127.0.0.1:10249",
			"--healthz-bind-address 127.0.0.1:10249 and metricsBindAddress 127.0.0.1:10249: " +
				"only one of two servers can listen; change one of the ports",
		},
		{
			"--healthz-bind-address=0.0.0.0:10249",
			"--healthz-bind-address 0.0.0.0:10249 and metricsBindAddress 127.0.0.1:10249: only one of two servers can listen; " +
				"change one of the ports",
		},
		{"--healthz-bind-address=10.0.0.1:10249", ""},
		{"--healthz-bind-address=127.0.0.1:10249 --metrics-bind-address=", ""},
	} {
		_, warnings, err := load(t, "", strings.Fields(tc.args)...)
		if got := strings.Join(warnings, "\n"); err != nil || got != tc.want {
			t.Errorf("%s: warnings %q, error %v, want %q", tc.args, got, err, tc.want)
		}
	}
}
