package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

// Whoever adds a field to Config says here whether it can change while the
// process runs: every field is in one setting, and in no other.
func TestEveryFieldIsInOneSetting(t *testing.T) {
	counted := map[string]int{}
	for _, s := range allSettings() {
		counted[s.name]++
	}
	visit(t, reflect.TypeFor[Config](), "", func(name string) bool {
		if counted[name] > 1 {
			t.Errorf("%s is in %d settings", name, counted[name])
		}
		found := counted[name] > 0
		delete(counted, name)
		return found
	})
	for name := range counted {
		t.Errorf("Config has no field %s, or it is in another setting", name)
	}
}

// visit calls known for each field of a struct, and goes into those structs of
// this package that are not known.
func visit(t *testing.T, of reflect.Type, prefix string, known func(name string) bool) {
	t.Helper()
	for field := range of.Fields() {
		name := prefix + field.Name
		switch {
		case known(name):
		case field.Type.Kind() == reflect.Struct && field.Type.PkgPath() == of.PkgPath():
			visit(t, field.Type, name+".", known)
		default:
			t.Errorf("%s is in no setting: can it change while the process runs?", name)
		}
	}
}

// Each setting names a field that files have.
func TestSettingsAreInTheFile(t *testing.T) {
	all := leaves()
	for _, mode := range []string{"nftables", "iptables", "ipvs", "other"} {
		for _, s := range allSettings() {
			path := s.path(&Config{Mode: mode, Logging: Logging{Format: "json"}})
			if s.changes != never && !slices.Contains(all, path) {
				t.Errorf("%s: v1alpha1 has no %s", s.name, path)
			}
		}
	}
}

// A change of any one field of the file is told under its name, or under that
// of what it becomes when nothing of it counts in this mode.
func TestChangesOfEachField(t *testing.T) {
	for _, tc := range fieldCases() {
		if tc.want == nil || tc.also != "" {
			continue
		}
		old := mustLoad(t, header)
		live, restart := Changes(old, mustLoad(t, header+nested(tc.path, tc.value)))
		names := []string{}
		for _, f := range append(live, restart...) {
			names = append(names, f.Name)
			if f.Old == f.New {
				t.Errorf("%s: %s", tc.path, f)
			}
		}
		want := []string{tc.path}
		if tc.path == "bindAddress" { // moves the servers along
			want = []string{"bindAddress", "healthzBindAddress", "metricsBindAddress"}
		}
		if diff := cmp.Diff(want, names); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.path, diff)
		}
	}
}

// What is told is what a person wrote, in both files.
func TestChanges(t *testing.T) {
	old := mustLoad(t, header+`
hostnameOverride: a
clusterCIDR: 10.0.0.0/8
conntrack: {tcpCloseWaitTimeout: 1m, min: 5}
nodePortAddresses: [primary]
logging: {vmodule: [{filePattern: loop, verbosity: 3}]}
`)
	new := mustLoad(t, header+`
hostnameOverride: b
clusterCIDR: 10.0.0.0/8,fd00::/48
conntrack: {tcpCloseWaitTimeout: 2m, min: 6}
nodePortAddresses: [localhost, 10.0.0.0/8]
metricsBindAddress: ""
iptables: {masqueradeBit: 3}
nftables: {masqueradeBit: 15, minSyncPeriod: 1s}
clientConnection: {qps: 7}
featureGates: {AllowServiceExternalIPs: false}
`)
	live, restart := Changes(old, new)
	want := []string{
		"metricsBindAddress: 127.0.0.1:10249 -> 0",
		"clusterCIDR: 10.0.0.0/8 -> 10.0.0.0/8,fd00::/48",
		`nodePortAddresses: ["primary"] -> ["localhost","10.0.0.0/8"]`,
		"nftables.masqueradeBit: 14 -> 15",
		"nftables.minSyncPeriod: 0s -> 1s",
		"conntrack.min: 5 -> 6",
		"conntrack.tcpCloseWaitTimeout: 1m0s -> 2m0s",
		`logging.vmodule: [{"filePattern":"loop","verbosity":3}] -> null`,
	}
	if diff := cmp.Diff(want, lines(live)); diff != "" {
		t.Errorf("live (-want +got):\n%s", diff)
	}
	want = []string{
		"hostnameOverride: a -> b", "clientConnection.qps: 5 -> 7",
		`featureGates: null -> {"AllowServiceExternalIPs":false}`,
	}
	if diff := cmp.Diff(want, lines(restart)); diff != "" {
		t.Errorf("restart (-want +got):\n%s", diff)
	}
	if live, restart := Changes(new, new); live != nil || restart != nil {
		t.Errorf("to itself: %v, %v", live, restart)
	}
}

func lines(fields []Field) []string {
	var list []string
	for _, f := range fields {
		list = append(list, f.String())
	}
	return list
}

// A node's name that comes from the host is told although no file has it.
func TestChangesOfWhatTheWorldSays(t *testing.T) {
	old, new := mustLoad(t, header), mustLoad(t, header)
	new.NodeName = "host-2"
	_, restart := Changes(old, new)
	if diff := cmp.Diff([]string{"hostnameOverride: host-1 -> host-2"}, lines(restart)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// What belongs to another mode waits for it, along with the mode; what merely
// follows from the mode is not told.
func TestChangesOfAnotherMode(t *testing.T) {
	old := mustLoad(t, header)
	new := mustLoad(t, header+"mode: iptables\noomScoreAdj: 0\niptables: {masqueradeBit: 3}\n")
	live, restart := Changes(old, new)
	if got := fmt.Sprint(names(live), names(restart)); got != "[oomScoreAdj] [nodePortAddresses iptables.masqueradeBit mode]" {
		t.Errorf("changes %s", got)
	}
	merged, err := Merge(old, new)
	if err != nil {
		t.Fatal(err)
	}
	want := mustLoad(t, header)
	want.OOMScoreAdj = 0
	if diff := cmp.Diff(want, merged, compare); diff != "" {
		t.Errorf("in force (-want +got):\n%s", diff)
	}
}

// Whether loopback addresses serve NodePorts can change while the process runs.
func TestChangeOfLocalhostNodePorts(t *testing.T) {
	old := mustLoad(t, header+"mode: iptables\n")
	new := mustLoad(t, header+"mode: iptables\niptables: {localhostNodePorts: false}\n")
	live, restart := Changes(old, new)
	if diff := cmp.Diff([]string{"iptables.localhostNodePorts: true -> false"}, lines(live)); diff != "" || restart != nil {
		t.Errorf("at a restart: %v; live (-want +got):\n%s", restart, diff)
	}
	merged, err := Merge(old, new)
	if err != nil || merged.Loopback != LoopbackNever {
		t.Errorf("in force: %q, %v", merged.Loopback, err)
	}
}

func names(fields []Field) []string {
	var list []string
	for _, f := range fields {
		list = append(list, f.Name)
	}
	return list
}

// In force is what can change, and what was there of the rest; its text is that
// of a file that says the same.
func TestMerge(t *testing.T) {
	common := `
conntrack: {min: 6}
nodePortAddresses: [localhost]
nftables: {syncPeriod: 5s}
logging: {format: json, options: {json: {splitStream: true}}}
`
	old := mustLoad(t, header+"hostnameOverride: a\nclientConnection: {qps: 9}\n")
	new := mustLoad(t, header+"hostnameOverride: b\niptables: {masqueradeBit: 3}\n"+common)
	want := mustLoad(t, header+"hostnameOverride: a\nclientConnection: {qps: 9}\n"+common)
	got, err := Merge(old, new)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, compare); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff(string(want.effective), string(got.effective)); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
	if old.NodePorts.Localhost || !strings.Contains(string(old.effective), "nodePortAddresses:\n- primary") {
		t.Error("the old one was changed")
	}
	live, restart := Changes(got, new)
	if diff := cmp.Diff([]string{"hostnameOverride", "clientConnection.qps"}, names(restart)); diff != "" || live != nil {
		t.Errorf("still to do: %v, %s", live, diff)
	}
}

// Where nothing has to wait, all that the file says is in force.
func TestMergeOfAll(t *testing.T) {
	old := mustLoad(t, header)
	new := mustLoad(t, header+"iptables: {masqueradeBit: 3}\noomScoreAdj: 1\n")
	got, err := Merge(old, new)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(new, got, compare); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff(string(new.effective), string(got.effective)); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
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
