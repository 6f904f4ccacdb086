//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"
)

// The file is one of kube-proxy's, and sets nothing that only the whole machine
// has.
func TestConfiguration(t *testing.T) {
	for _, nodePorts := range [][]string{nil, {"192.168.0.0/16", "2001:db8::/64"}} {
		text, err := configuration(nodePorts)
		if err != nil {
			t.Fatal(err)
		}
		var got v1alpha1.KubeProxyConfiguration
		if err := yaml.UnmarshalStrict([]byte(text), &got); err != nil {
			t.Fatalf("%v:\n%s", err, text)
		}
		var none, own int32
		if _, err := fmt.Sscan(readFile(t, "/proc/self/oom_score_adj"), &own); err != nil {
			t.Fatal(err)
		}
		want := v1alpha1.KubeProxyConfiguration{
			Mode: "nftables", ClusterCIDR: "10.180.0.0/16,fd00:10:180::/48", NodePortAddresses: nodePorts,
			Conntrack: v1alpha1.KubeProxyConntrackConfiguration{MaxPerCore: &none}, OOMScoreAdj: &own,
		}
		want.APIVersion, want.Kind = v1alpha1.SchemeGroupVersion.String(), "KubeProxyConfiguration"
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-want, +file:\n%s", diff)
		}
	}
}

// A reader never finds the file missing or half written, and each version of it
// is a file of its own.
func TestSettingsSwap(t *testing.T) {
	s, err := newSettings(filepath.Join(t.TempDir(), "config"))
	if err != nil {
		t.Fatal(err)
	}
	first, err := filepath.EvalSymlinks(s.path())
	if err != nil {
		t.Fatal(err)
	}
	before := readFile(t, s.path())
	if now, err := s.swap([]string{"10.0.0.0/8"}); err != nil || now.IsZero() {
		t.Fatal(now, err)
	}
	second, err := filepath.EvalSymlinks(s.path())
	if err != nil || first == second {
		t.Errorf("still %s: %v", second, err)
	}
	if kept := readFile(t, first); kept != before {
		t.Errorf("the old version is another now: %q", kept)
	}
	if now := readFile(t, s.path()); now == before {
		t.Error("the new version is not there")
	}
	if _, err := newSettings(s.dir); err == nil {
		t.Error("no error for a folder that is there")
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
