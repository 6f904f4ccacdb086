package config

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// The scheduler of IPVS is the default of Services in every mode that has schedulers, as a cluster may come from mode
// ipvs. Mode userspace has a flag before it. A name that only a kernel may know is for mode ipvs.
func TestDefaultScheduler(t *testing.T) {
	const unknown = `ipvs.scheduler is ignored: "best" is no scheduler that mode`
	for args, want := range map[string]struct{ scheduler, warning string }{
		"nftables":                       {},
		"nftables sh":                    {"sh", ""},
		"ebpf lblcr":                     {"lblcr", ""},
		"userspace mh":                   {"mh", ""},
		"userspace mh --scheduler=wlc":   {"wlc", ""},
		"userspace mh --scheduler=":      {"mh", ""},
		"nftables wrr --scheduler=lc":    {"wrr", "--scheduler has an effect in mode userspace only"},
		"nftables x --ipvs-scheduler=mh": {"mh", ""},
		"nftables best":                  {"", unknown + " nftables knows: expected rr, wrr, lc"},
		"ipvs best":                      {"best", ""},
		"iptables sh":                    {},
	} {
		mode, rest, _ := strings.Cut(args, " ")
		name, flag, _ := strings.Cut(rest, " ")
		fs := pflag.NewFlagSet("sluice", pflag.ContinueOnError)
		f := NewFlags(fs)
		if err := fs.Parse(strings.Fields("--config=c --proxy-mode=" + mode + " " + flag)); err != nil {
			t.Fatal(err)
		}
		file := header + "\nipvs: {scheduler: '" + name + "'}"
		cfg, warnings, err := f.Load(
			Env{Hostname: os.Hostname, ReadFile: func(string) ([]byte, error) { return []byte(file), nil }},
			Options{Modes: []string{"nftables", "iptables", "ipvs", "userspace", "ebpf"}})
		if err != nil {
			t.Fatal(err)
		}
		said := strings.Join(warnings, "\n")
		if cfg.Scheduler != want.scheduler || !strings.Contains(said, want.warning) ||
			want.warning == "" && strings.Contains(said, "scheduler") {
			t.Errorf("%s: scheduler %q, warnings %q, want %+v", args, cfg.Scheduler, said, want)
		}
	}
}
