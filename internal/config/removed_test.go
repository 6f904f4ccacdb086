package config

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

// A removedCase gives one flag that an older kube-proxy had.
type removedCase struct {
	arg     string
	removed string        // the Kubernetes release that removed it
	want    func(*Config) // nil: nothing changes
	warning string        // how the warning begins after the name; empty: there is none
}

// removedCases are all flags that kube-proxy had from 1.0 on and that 1.37 does
// not have, with the release that removed them.
func removedCases() []removedCase {
	return slices.Concat(replacedCases(), klogCases(), libraryCases())
}

func replacedCases() []removedCase {
	cleanup := func(c *Config) { c.Cleanup = true }
	size := func(c *Config) { c.Conntrack.Min, c.Conntrack.MaxPerCore = 100000, 1 }
	return []removedCase{
		{"--cleanup-iptables", "1.15", cleanup, "does what --cleanup does"},
		{"--cleanup-iptables=true", "1.15", cleanup, "does what --cleanup does"},
		{"--cleanup-iptables=false", "1.15", nil, ""},
		{"--cleanup-ipvs", "1.21", nil, ""},
		{"--cleanup-ipvs=false", "1.21", nil, "no effect: --cleanup also removes"},
		{"--conntrack-max=100000", "1.15", size, "sets conntrack.min to this"},
		{"--conntrack-max=0", "1.15", nil, ""},
		{"--resource-container=/kube-proxy", "1.16", nil, "no effect: use Slice="},
		{"--resource-container=", "1.16", nil, ""},
		{"--legacy-userspace-proxy=false", "1.1", nil, "no effect: use --proxy-mode"},
	}
}

func klogCases() []removedCase {
	const file = "no effect: logs go to standard error; use StandardError="
	return []removedCase{
		{"--logtostderr", "1.26", nil, ""},
		{"--logtostderr=true", "1.26", nil, ""},
		{"--logtostderr=false", "1.26", nil, file},
		{"--alsologtostderr", "1.26", nil, ""},
		{"--alsologtostderr=false", "1.26", nil, ""},
		{"--log-dir=/var/log", "1.26", nil, file},
		{"--log_dir=/var/log", "1.26", nil, file},
		{"--log-dir=", "1.26", nil, ""},
		{"--log-file=/var/log/kube-proxy.log", "1.26", nil, file},
		{"--log-file=", "1.26", nil, ""},
		{"--log-file-max-size=100", "1.26", nil, "no effect: Sluice writes no log files"},
		{"--log-file-max-size=1800", "1.26", nil, ""},
		{"--stderrthreshold=INFO", "1.26", nil, "no effect: everything goes to standard error"},
		{"--stderrthreshold=2", "1.26", nil, ""},
		{"--log-backtrace-at=server.go:10", "1.26", nil, "no effect: use --vmodule"},
		{"--log-backtrace-at=:0", "1.26", nil, ""},
		{"--skip-headers", "1.26", nil, "no effect: log lines always have"},
		{"--skip-headers=false", "1.26", nil, ""},
		{"--skip-log-headers", "1.26", nil, ""},
		{"--add-dir-header", "1.26", nil, "no effect: log lines do not name"},
		{"--add-dir-header=false", "1.26", nil, ""},
		{"--one-output", "1.26", nil, ""},
	}
}

func libraryCases() []removedCase {
	const image, library = "no effect, as in kube-proxy: it pulls no images",
		"no effect, as in kube-proxy: a library had the flag; remove it"
	cases := []removedCase{
		{"--google-json-key=/key.json", "1.13", nil, image},
		{"--google-json-key=", "1.13", nil, ""},
		{"--azure-container-registry-config=/etc/kubernetes/azure.json", "1.30", nil, image},
		{"--azure-container-registry-config=", "1.30", nil, ""},
	}
	for removed, args := range map[string]string{
		"1.10": "--docker-run=/var/run/docker",
		"1.19": "--ir-data-source=influxdb --ir-dbname=k8s --ir-hawkular= --ir-influxdb-host=localhost:8080 " +
			"--ir-namespace-only --ir-password=root --ir-percentile=90 --ir-user=root --loglevel=1 " +
			"--allow-verification-with-non-compliant-keys",
		"1.35": "--allow_dynamic_housekeeping=true --application_metrics_count_limit=100 " +
			"--cloud-provider-gce-l7lb-src-cidrs=130.211.0.0/22 --cloud-provider-gce-lb-src-cidrs=130.211.0.0/22 " +
			"--container_hints=/etc/cadvisor/container_hints.json --containerd=/run/containerd/containerd.sock " +
			"--containerd-namespace=k8s.io --containerd_env_metadata_whitelist=A --crio_client_timeout=0s " +
			"--default-not-ready-toleration-seconds=300 --default-unreachable-toleration-seconds=300 " +
			"--disable_root_cgroup_stats --docker=unix:///var/run/docker.sock --docker-env-metadata-whitelist=A --docker_only " +
			"--docker-root=/var/lib/docker --docker-tls --docker-tls-ca=ca.pem --docker-tls-cert=cert.pem " +
			"--docker-tls-key=key.pem --enable-load-reader=false --event-storage-age-limit=default=0 " +
			"--event-storage-event-limit=default=0 --global-housekeeping-interval=1m --housekeeping-interval=10s " +
			"--log-cadvisor-usage --max_housekeeping_interval=1m --referenced_reset_interval=0 " +
			"--storage-driver-buffer-duration=1m --storage-driver-db=cadvisor --storage-driver-host=localhost:8086 " +
			"--storage-driver-password=root --storage-driver-secure --storage-driver-table=stats --storage-driver-user=root " +
			"--update_machine_info_interval=5m",
		"1.37": "--boot-id-file=/proc/sys/kernel/random/boot_id --machine-id-file=/etc/machine-id",
	} {
		for arg := range strings.FieldsSeq(args) {
			cases = append(cases, removedCase{arg, removed, nil, library})
		}
	}
	return cases
}

// A flag that an older kube-proxy had is accepted, with its effect or with a
// warning that names the release that removed it.
func TestRemovedFlags(t *testing.T) {
	removed := map[string]string{}
	for _, tc := range removedCases() {
		name, _, _ := strings.Cut(strings.ReplaceAll(strings.TrimPrefix(tc.arg, "--"), "_", "-"), "=")
		removed[name] = tc.removed
		t.Run(tc.arg, func(t *testing.T) {
			got, warnings, err := load(t, "", tc.arg)
			if err != nil {
				t.Fatal(err)
			}
			want := defaults()
			if tc.want != nil {
				tc.want(want)
			}
			if diff := cmp.Diff(want, got, compare); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			text := strings.Join(warnings, "\n")
			begin, end := "--"+name+": "+tc.warning, " (not in kube-proxy since "+tc.removed+")"
			if tc.warning == "" && text != "" {
				t.Errorf("warning %q, want none", text)
			}
			if tc.warning != "" && (!strings.HasPrefix(text, begin) || !strings.HasSuffix(text, end)) {
				t.Errorf("warning %q, want %q ...%q", text, begin, end)
			}
		})
	}
	table := map[string]string{}
	for _, g := range removedFlags() {
		for _, def := range g.defs {
			table[def.name] = def.removed
		}
	}
	if diff := cmp.Diff(table, removed); diff != "" {
		t.Errorf("removed flags (-table +tested):\n%s", diff)
	}
}

func release(text string) bool { return regexp.MustCompile(`^1\.\d+$`).MatchString(text) }

// Every flag says since when kube-proxy has it, except for flags of Sluice alone.
func TestReleases(t *testing.T) {
	ours := []string{
		"manifests", "ignore-kube-proxy", "reload-jitter", "ejection", "external", "direct-tunnel-port", "replace",
		"bind", "drain-timeout", "scheduler", "bpf-dir",
		"cgroup-root", "exempt-cgroups", "external-ip-ranges", "load-balancer-ip-ranges", "drain-bind-address",
	}
	for _, g := range table() {
		for _, def := range g.defs {
			if !release(def.since) && !slices.Contains(ours, def.name) {
				t.Errorf("--%s: since %q", def.name, def.since)
			}
		}
	}
	for _, g := range removedFlags() {
		for _, def := range g.defs {
			if !release(def.removed) || strings.HasSuffix(def.usage, ".") || def.usage == "" {
				t.Errorf("--%s: removed %q, usage %q", def.name, def.removed, def.usage)
			}
		}
	}
}

// An invalid value of a removed flag is an error, as before.
func TestRemovedFlagsWithWrongValues(t *testing.T) {
	for arg, want := range map[string]string{
		"--logtostderr=maybe":  `--logtostderr: Invalid value: "maybe": must be true or false`,
		"--conntrack-max=many": `--conntrack-max: Invalid value: "many": must be a whole number`,
		"--conntrack-max=-1":   "--conntrack-max: Invalid value: -1: must be 0 or more",
	} {
		if _, _, err := load(t, "", arg); err == nil || err.Error() != "configuration: "+want {
			t.Errorf("%s: error %v, want %s", arg, err, want)
		}
	}
}

// --conntrack-max is above --conntrack-min and --conntrack-max-per-core, as it
// was; a flag is above the field of the file.
func TestConntrackMax(t *testing.T) {
	for _, tc := range []struct {
		file         string
		args         []string
		min, perCore int
	}{
		{"", []string{"--conntrack-max=9", "--conntrack-min=5", "--conntrack-max-per-core=6"}, 9, 1},
		{"conntrack: {max: 9, maxPerCore: 6, min: 5}", nil, 9, 1},
		{"conntrack: {max: 9}", []string{"--conntrack-min=5", "--conntrack-max-per-core=6"}, 5, 6},
		{"conntrack: {max: 9}", []string{"--conntrack-max=7"}, 7, 1},
		{"conntrack: {max: 0, maxPerCore: 6, min: 5}", nil, 5, 6},
		{"conntrack: {max: null}", nil, 131072, 32768},
	} {
		cfg, _, err := load(t, header+tc.file, tc.args...)
		if err != nil {
			t.Errorf("%s %s: %v", tc.file, tc.args, err)
			continue
		}
		if cfg.Conntrack.Min != tc.min || cfg.Conntrack.MaxPerCore != tc.perCore {
			t.Errorf("%s %s: %+v, want %d and %d", tc.file, tc.args, cfg.Conntrack, tc.min, tc.perCore)
		}
		again, _, err := load(t, string(cfg.effective))
		if err != nil || again.Conntrack != cfg.Conntrack {
			t.Errorf("%s %s: read back %+v, error %v", tc.file, tc.args, again, err)
		}
	}
}

// Hidden flags do not make the help long.
func TestRemovedFlagsAreHidden(t *testing.T) {
	removed := map[string]bool{}
	for _, g := range removedFlags() {
		for _, def := range g.defs {
			removed[def.name] = true
		}
	}
	hidden := map[string]bool{}
	flagSet().VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			hidden[f.Name] = true
		}
	})
	if !maps.Equal(removed, hidden) {
		t.Errorf("removed %v\nhidden %v", slices.Sorted(maps.Keys(removed)), slices.Sorted(maps.Keys(hidden)))
	}
}

// The documentation agrees with the program.
func TestFlagsPage(t *testing.T) {
	const page, begin, end = "../../docs/flags.md", "<!-- begin -->\n", "<!-- end -->\n"
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(data), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the tables", page)
	}
	golden(t, page, before+begin+flagTables()+end+after)
}

// flagTables are the tables of docs/flags.md.
func flagTables() string {
	var b strings.Builder
	for _, g := range removedFlags() {
		b.WriteString("\n### " + g.Title + "\n\n| flag | since | removed | now |\n|---|---|---|---|\n")
		for _, def := range g.defs {
			b.WriteString("| `--" + def.name + "` | " + def.since + " | " + def.removed + " | " + def.usage +
				quietText(def.quiet) + " |\n")
		}
	}
	b.WriteString("\n## Flags of kube-proxy 1.37\n\n| flag | since | what it does |\n|---|---|---|\n")
	for _, g := range Groups() {
		for _, def := range g.defs {
			since := def.since
			if since == "" {
				since = "only Sluice"
			}
			b.WriteString("| `--" + def.name + "` | " + since + " | " + def.usage + " |\n")
		}
	}
	b.WriteString("\n## Fields that the configuration file no longer has\n\n| field | since | removed | now |\n" +
		"|---|---|---|---|\n")
	for _, f := range removedFields() {
		b.WriteString("| `" + f.name + "` | " + f.since + " | " + f.removed + " | " + f.usage + quietText(f.quiet) + " |\n")
	}
	b.WriteString("\n")
	return b.String()
}

func quietText(values []string) string {
	var texts []string
	for _, v := range values {
		if v == "" {
			texts = append(texts, "an empty value")
		} else {
			texts = append(texts, "`"+v+"`")
		}
	}
	if len(texts) == 0 {
		return ""
	}
	return ". No warning for " + strings.Join(texts, ", ")
}
