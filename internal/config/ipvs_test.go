package config

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"
)

// The section ipvs is read and checked in that mode only.
func TestIPVS(t *testing.T) {
	load := func(file, mode string) (*Config, error) {
		fs := pflag.NewFlagSet("sluice", pflag.ContinueOnError)
		f := NewFlags(fs)
		if err := fs.Parse([]string{"--config=c", "--proxy-mode", mode}); err != nil {
			t.Fatal(err)
		}
		env := Env{Hostname: os.Hostname, ReadFile: func(string) ([]byte, error) { return []byte(header + "\n" + file), nil }}
		cfg, _, err := f.Load(env, Options{Modes: []string{"nftables", "ipvs"}})
		return cfg, err
	}
	const file = "ipvs: {scheduler: wrr, excludeCIDRs: [192.0.2.0/24, 'fd00::/8'], strictARP: true, tcpTimeout: 1h, " +
		"tcpFinTimeout: 2m, udpTimeout: 3s}"
	want := IPVS{
		StrictARP:    true,
		ExcludeCIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("fd00::/8")},
		TCPTimeout:   time.Hour, TCPFinWait: 2 * time.Minute, UDPTimeout: 3 * time.Second,
	}
	for mode, want := range map[string]IPVS{"ipvs": want, "nftables": {}} {
		cfg, err := load(file, mode)
		if err != nil {
			t.Fatal(err)
		}
		if cfg.Scheduler != "wrr" {
			t.Errorf("%s: scheduler %q", mode, cfg.Scheduler)
		}
		if diff := cmp.Diff(want, cfg.IPVS, cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", mode, diff)
		}
	}
	_, err := load("ipvs: {excludeCIDRs: [x], udpTimeout: -1s}", "ipvs")
	for _, field := range []string{"ipvs.excludeCIDRs[0]", "ipvs.udpTimeout"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("got %v, want an error of %s", err, field)
		}
	}
}

func TestLocalhostInModeIPVS(t *testing.T) {
	fs := pflag.NewFlagSet("sluice", pflag.ContinueOnError)
	f := NewFlags(fs)
	if err := fs.Parse([]string{"--proxy-mode=ipvs", "--nodeport-addresses=localhost,primary"}); err != nil {
		t.Fatal(err)
	}
	_, warnings, err := f.Load(Env{Hostname: os.Hostname}, Options{Modes: []string{"nftables", "ipvs"}})
	const want = "localhost in --nodeport-addresses has no effect: mode ipvs serves no NodePorts on loopback addresses"
	if err != nil || !slices.Contains(warnings, want) {
		t.Errorf("%q, %v, want %q", warnings, err, want)
	}
}
