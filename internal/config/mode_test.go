package config

import (
	"testing"

	"github.com/spf13/pflag"
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
