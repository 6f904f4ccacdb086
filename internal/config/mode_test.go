package config

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/sluice-proxy/sluice/internal/route"
)

func TestABlankModeIsAsked(t *testing.T) {
	for _, tt := range []struct {
		args  []string
		asked bool
		want  string
	}{
		{nil, true, "iptables"},
		{[]string{"--proxy-mode=nftables"}, false, "nftables"},
	} {
		fs := pflag.NewFlagSet("sluice", pflag.ContinueOnError)
		flags := NewFlags(fs)
		if err := fs.Parse(tt.args); err != nil {
			t.Fatal(err)
		}
		asked := false
		cfg, _, err := flags.Load(Env{Hostname: func() (string, error) { return "node-a", nil }}, Options{
			Modes:   []string{"nftables", "iptables"},
			Default: func() string { asked = true; return "iptables" },
		})
		if err != nil || cfg.Mode != tt.want || asked != tt.asked {
			t.Errorf("%v: mode %q (asked %v, error %v), want %q (asked %v)", tt.args, cfg.Mode, asked, err, tt.want, tt.asked)
		}
	}
}

// The mode iptables has a section of its own, and kube-proxy's defaults for NodePorts.
func TestIPTablesSection(t *testing.T) {
	want := defaults()
	want.Mode, want.NodePorts = "iptables", route.NodePortOptions{All: true, Loopback: route.LoopbackIncluded}
	if diff := cmp.Diff(want, mustLoad(t, "", "--proxy-mode=iptables"), compare); diff != "" {
		t.Errorf("nothing said (-want +got):\n%s", diff)
	}
	want.MasqueradeMark, want.MasqueradeAll = 8, true
	want.SyncPeriod, want.MinSyncPeriod = time.Minute, time.Second
	want.NodePorts = route.NodePortOptions{
		Primary: true, CIDRs: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Loopback: route.LoopbackNever,
	}
	got := mustLoad(t, header+"mode: iptables\nnodePortAddresses: [primary, 127.0.0.0/8]\n"+
		"iptables: {masqueradeBit: 3, masqueradeAll: true, localhostNodePorts: false, syncPeriod: 1m, minSyncPeriod: 1s}\n"+
		"nftables: {masqueradeBit: 4, syncPeriod: 5s, minSyncPeriod: 4s}\n")
	if diff := cmp.Diff(want, got, compare); diff != "" {
		t.Errorf("a file (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(got, mustLoad(t, string(got.effective)), compare); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
}

// The rule for loopback addresses is the mode's.
func TestLoopback(t *testing.T) {
	for _, tt := range []struct {
		file string
		args []string
		want route.Loopback
	}{
		{"", []string{"--proxy-mode=iptables", "--iptables-localhost-nodeports=false"}, route.LoopbackNever},
		{
			"mode: iptables\niptables: {localhostNodePorts: false}",
			[]string{"--iptables-localhost-nodeports"},
			route.LoopbackIncluded,
		},
		{"mode: iptables\niptables: {localhostNodePorts: null}", nil, route.LoopbackIncluded},
		{"", []string{"--proxy-mode=nftables", "--iptables-localhost-nodeports"}, route.LoopbackNamed},
		{"mode: nftables\niptables: {localhostNodePorts: false}", nil, route.LoopbackNamed},
	} {
		if got := mustLoad(t, header+tt.file, tt.args...).NodePorts.Loopback; got != tt.want {
			t.Errorf("%q %q: %v, want %v", tt.file, tt.args, got, tt.want)
		}
	}
}

// kube-proxy, too, says so and serves the rest.
func TestLocalhostThatIsTakenBack(t *testing.T) {
	cfg, warnings, err := load(t, header+"mode: iptables\niptables: {localhostNodePorts: false}\n",
		"--nodeport-addresses=localhost,primary")
	want := "localhost in --nodeport-addresses has no effect: iptables.localhostNodePorts is false"
	if err != nil || len(warnings) != 1 || warnings[0] != want || !cfg.NodePorts.Primary {
		t.Errorf("%q, %v", warnings, err)
	}
}

func TestPollPeriod(t *testing.T) {
	for sync, want := range map[string]time.Duration{
		"30s": 3 * time.Second, "1m": 6 * time.Second, "2s": time.Second, "1ms": time.Second, "24h": 30 * time.Second,
	} {
		if got := mustLoad(t, "", "--proxy-mode=iptables", "--iptables-sync-period="+sync).PollPeriod(); got != want {
			t.Errorf("syncPeriod %s: a look each %v, want %v", sync, got, want)
		}
	}
}
