package config

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

func loadUserspace(t *testing.T, args ...string) (Userspace, error) {
	t.Helper()
	fs := pflag.NewFlagSet("sluice", pflag.ContinueOnError)
	f := NewFlags(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	cfg, _, err := f.Load(Env{Hostname: os.Hostname}, Options{Modes: []string{"userspace", "nftables"}})
	if err != nil {
		return Userspace{}, err
	}
	return cfg.Userspace, nil
}

func TestUserspace(t *testing.T) {
	for args, want := range map[string]Userspace{
		"": {BindRules, 33000, 49151, 30 * time.Second, time.Minute},
		"--bind=loopback --proxy-port-range=20000-20010 --udp-timeout=1m --drain-timeout=0s": {
			BindLoopback,
			20000, 20010, time.Minute, 0,
		},
		"--proxy-port-range=20000+5": {BindRules, 20000, 20005, 30 * time.Second, time.Minute},
		"--proxy-port-range=7":       {BindRules, 7, 7, 30 * time.Second, time.Minute},
		"--proxy-mode=nftables":      {},
		"--proxy-port-range=1-65535": {BindRules, 1, 65535, 30 * time.Second, time.Minute},
	} {
		got, err := loadUserspace(t, strings.Fields(args)...)
		if err != nil {
			t.Errorf("%s: %v", args, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", args, diff)
		}
	}
	for args, want := range map[string]string{
		"--bind=0.0.0.0":      `--bind: Invalid value: "0.0.0.0": must be rules or loopback`,
		"--udp-timeout=0s":    "--udp-timeout: Invalid value: 0s: must be more than 0",
		"--drain-timeout=-1s": "--drain-timeout: Invalid value: -1s: must be 0 or more",
		"--scheduler=best": `--scheduler: Invalid value: "best": must be rr, lc, wlc or sh, ` +
			`the schedulers of mode userspace`,
		"--scheduler=p2c": `--scheduler: Invalid value: "p2c": must be rr, lc, wlc or sh, ` +
			`the schedulers of mode userspace`,
		"--proxy-port-range=9-1":     `--proxy-port-range: Invalid value: "9-1": must be a range of ports`,
		"--proxy-port-range=0-9":     `"0-9": must be a range of ports`,
		"--proxy-port-range=65535+1": `"65535+1": must be a range of ports`,
		"--proxy-port-range=a":       `"a": must be a range of ports`,
		"--proxy-mode=nftables --bind=loopback": `--bind: Invalid value: "loopback": ` +
			`only the mode userspace has this flag, and the mode is nftables`,
	} {
		if _, err := loadUserspace(t, strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", args, err, want)
		}
	}
}

// A build in which rules cannot lead packets to sockets has another default, and refuses them.
func TestBindsOfTheBuild(t *testing.T) {
	for args, want := range map[string]string{"": "", "--bind=loopback": "", "--bind=rules": "must be loopback"} {
		fs := pflag.NewFlagSet("sluice", pflag.ContinueOnError)
		f := NewFlags(fs)
		if err := fs.Parse(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		cfg, _, err := f.Load(Env{Hostname: os.Hostname}, Options{Modes: []string{"userspace"}, Binds: []Bind{BindLoopback}})
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v, want %q", args, err, want)
			}
			continue
		}
		if err != nil || cfg.Userspace.Bind != BindLoopback {
			t.Errorf("%q: %+v, %v", args, cfg, err)
		}
	}
}
