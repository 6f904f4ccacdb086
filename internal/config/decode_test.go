package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What YAML has beyond plain mappings, and JSON.
func TestDecode(t *testing.T) {
	for _, tc := range []struct{ name, text string }{
		{"yaml", header + "iptables: {masqueradeBit: 7}\nnftables: {masqueradeBit: 7}\n"},
		{"json", `{"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",` + "\n\t" +
			`"iptables":` + "\t" + `{"masqueradeBit": 7}, "nftables":` + "\n\t\t" + `{"masqueradeBit": 7}}`},
		{"documents", "---\n" + header + "iptables: {masqueradeBit: 7}\nnftables: {masqueradeBit: 7}\n---\n"},
		{"aliases", header + "iptables: &a {masqueradeBit: &b 7}\nnftables: {masqueradeBit: *b}\n"},
		{"whole aliases", header + "iptables: &a {masqueradeBit: 7}\nnftables: *a\n"},
		{"hexadecimal", header + "iptables: {masqueradeBit: 0x7}\nnftables: {masqueradeBit: 07}\n"},
		{"carriage returns", strings.ReplaceAll(header, "\n", "\r\n") +
			"iptables: {masqueradeBit: 7}\r\nnftables: {masqueradeBit: 7}\r\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			doc, err := decode("f", []byte(tc.text))
			if err != nil {
				t.Fatal(err)
			}
			if len(doc.problems) > 0 {
				t.Fatalf("problems: %v", doc.problems)
			}
			if a, b := doc.config.IPTables.MasqueradeBit, doc.config.NFTables.MasqueradeBit; *a != 7 || *b != 7 {
				t.Errorf("bits %d and %d", *a, *b)
			}
		})
	}
}

// A value knows its line, in lists and mappings too.
func TestLines(t *testing.T) {
	doc, err := decode("f", []byte(header+"nodePortAddresses:\n- a\n\n- b\nfeatureGates:\n  X: true\nmode: null\n"+
		"logging:\n  vmodule:\n  - verbosity: 1\n"))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{
		"apiVersion": 1, "kind": 2, "nodePortAddresses": 3, "nodePortAddresses[0]": 4, "nodePortAddresses[1]": 6,
		"featureGates": 7, "featureGates.X": 8, "logging": 10, "logging.vmodule": 11, "logging.vmodule[0]": 12,
		"logging.vmodule[0].verbosity": 12, "logging.vmodule[0].filePattern": 12, "mode": 0,
	} {
		if got := doc.line(path); got != want {
			t.Errorf("%s is in line %d, want %d", path, got, want)
		}
	}
	if !doc.sets("featureGates.X") || doc.sets("mode") || doc.sets("logging.vmodule[0].filePattern") ||
		(*document)(nil).sets("mode") {
		t.Error("fields that are null or missing are set, or others are not")
	}
}

// FuzzDecode verifies that no text makes Load panic, and that an accepted configuration is written back with the same
// meaning.
func FuzzDecode(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	more, err := filepath.Glob("testdata/errors/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range append(files, more...) {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(data))
	}
	f.Add(header +
		"conntrack: {max: 9}\nresourceContainer: /kube-proxy\nudpIdleTimeout: 250ms\nfeatureGates: \"IPv6DualStack=true\"\n")
	f.Add("apiVersion: componentconfig/v1alpha1\nkind: KubeProxyConfiguration\nfeatureGates: \"\"\n" +
		"conntrack: {max: null}\n")
	for _, tc := range fieldCases() {
		f.Add(header + nested(tc.path, tc.value) + tc.also)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if text == "" {
			return
		}
		cfg, _, err := load(t, text)
		if err != nil {
			return
		}
		again, _, err := load(t, string(cfg.effective))
		if err != nil {
			t.Fatalf("read back: %v\n%s", err, cfg.effective)
		}
		if diff := cmp.Diff(cfg, again, compare); diff != "" {
			t.Errorf("read back (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(string(cfg.effective), string(again.effective)); diff != "" {
			t.Errorf("written again (-want +got):\n%s", diff)
		}
	})
}
