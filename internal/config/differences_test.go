package config

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

// A change of any one field of the file makes a difference, under its name.
func TestDifferencesOfEachField(t *testing.T) {
	for _, tc := range fieldCases() {
		if tc.want == nil || tc.also != "" {
			continue
		}
		got := Differences(mustLoad(t, header), mustLoad(t, header+nested(tc.path, tc.value)))
		want := 1
		switch tc.path {
		case "bindAddress": // moves the servers along
			want = 3
		case "featureGates":
			want = 2
		}
		if len(got) != want || !strings.HasPrefix(got[0], tc.path) {
			t.Errorf("%s: %q", tc.path, got)
		}
	}
}

// Values are written as in a file. Long ones are cut off.
func TestDifferences(t *testing.T) {
	old := mustLoad(t, header+`
hostnameOverride: a
clusterCIDR: 10.0.0.0/8
conntrack: {tcpCloseWaitTimeout: 1m, min: 5}
logging: {vmodule: [{filePattern: loop, verbosity: 3}]}
`)
	new := mustLoad(t, header+`
hostnameOverride: b
clusterCIDR: 10.0.0.0/8,fd00::/48
conntrack: {tcpCloseWaitTimeout: 2m, min: 6}
nodePortAddresses: [localhost, 10.0.0.0/8, 10.1.1.1/32, 10.1.1.2/32, 10.1.1.3/32, 10.1.1.4/32]
metricsBindAddress: ""
iptables: {masqueradeBit: 3}
featureGates: {AllowServiceExternalIPs: false}
`)
	want := []string{
		"clusterCIDR: 10.0.0.0/8 -> 10.0.0.0/8,fd00::/48",
		"conntrack.min: 5 -> 6",
		"conntrack.tcpCloseWaitTimeout: 1m0s -> 2m0s",
		"featureGates.AllowServiceExternalIPs: null -> false",
		"hostnameOverride: a -> b",
		"iptables.masqueradeBit: 14 -> 3",
		`logging.vmodule: [{"filePattern":"loop","verbosity":3}] -> null`,
		"metricsBindAddress: 127.0.0.1:10249 -> 0",
		`nodePortAddresses: ["primary"] -> ["localhost","10.0.0.0/8","10.1.1.1/32","10.1.1.2/32","10.1.1.3/...`,
	}
	if diff := cmp.Diff(want, Differences(old, new)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	same := mustLoad(t, header+"hostnameOverride: ' A '\nclusterCIDR: 10.0.0.0/8 # the same\n"+
		"conntrack: {min: 5, tcpCloseWaitTimeout: 60s}\nlogging: {vmodule: [{filePattern: loop, verbosity: 3}]}\n")
	if got := Differences(old, same); got != nil {
		t.Errorf("to itself: %q", got)
	}
}

// A node's name that comes from the host makes a difference although no file has it.
func TestDifferenceOfTheHost(t *testing.T) {
	old, new := mustLoad(t, header), mustLoad(t, header)
	new.NodeName = "host-2"
	if diff := cmp.Diff([]string{"hostnameOverride: host-1 -> host-2"}, Differences(old, new)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// The random wait before a reload suits many nodes, unless a flag says otherwise.
func TestReloadJitter(t *testing.T) {
	for flag, want := range map[string]time.Duration{
		"--v=0": 2 * time.Second, "--reload-jitter=0": 0, "--reload-jitter=2m": 2 * time.Minute,
		"--reload-jitter=1h": time.Hour,
	} {
		cfg, _, err := load(t, header, flag)
		if err != nil || cfg.ReloadJitter != want {
			t.Errorf("%s: %+v, %v", flag, cfg, err)
		}
	}
	for flag, want := range map[string]string{
		"--reload-jitter=-1s":     "--reload-jitter: Invalid value: -1s: must be 0 or more",
		"--reload-jitter=9999h":   "--reload-jitter: Invalid value: 9999h0m0s: must be 1h or less",
		"--reload-jitter=1h0m10s": "--reload-jitter: Invalid value: 1h0m10s: must be 1h or less",
	} {
		if _, _, err := load(t, header, flag); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", flag, err, want)
		}
	}
}

// A pattern that matches nothing, ever, is a mistake that hurts nobody.
func TestBadPatternIsWarnedOf(t *testing.T) {
	_, warnings, err := load(t, header, "--vmodule=loop*=3,[=4")
	if err != nil || len(warnings) != 1 || warnings[0] != `--vmodule "[" is not a pattern and has no effect` {
		t.Errorf("%q, %v", warnings, err)
	}
}

// The path of the file is the one that was given.
func TestFile(t *testing.T) {
	set := pflag.NewFlagSet("sluice", pflag.ContinueOnError)
	f := NewFlags(set)
	if got := f.File(); got != "" {
		t.Errorf("without a flag: %q", got)
	}
	if err := set.Parse([]string{"--config=/etc/a.conf"}); err != nil {
		t.Fatal(err)
	}
	if got := f.File(); got != "/etc/a.conf" {
		t.Errorf("file %q", got)
	}
}
