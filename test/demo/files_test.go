//go:build linux

package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"
)

const before = `# A comment that stays.
kind: Service
metadata:
  name: web
---
kind: EndpointSlice
addressType: IPv4
endpoints:
- addresses: [10.0.0.9]
---
kind: EndpointSlice
addressType: IPv6
endpoints: []
`

func TestWithBackends(t *testing.T) {
	backends := []netip.Addr{
		netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1"), netip.MustParseAddr("10.0.0.2"),
	}
	for _, c := range []struct {
		name     string
		backends []netip.Addr
		want     string
	}{
		{"each slice gets its family", backends, `# A comment that stays.
kind: Service
metadata:
  name: web
---
addressType: IPv4
endpoints:
- addresses:
  - 10.0.0.1
- addresses:
  - 10.0.0.2
kind: EndpointSlice
---
addressType: IPv6
endpoints:
- addresses:
  - fd00::1
kind: EndpointSlice
`},
		{"none", nil, `# A comment that stays.
kind: Service
metadata:
  name: web
---
addressType: IPv4
endpoints: []
kind: EndpointSlice
---
addressType: IPv6
endpoints: []
kind: EndpointSlice
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := withBackends([]byte(before), c.backends)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, strings.TrimRight(string(got), "\n")+"\n"); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestWithBackendsNamesTheDocument(t *testing.T) {
	_, err := withBackends([]byte("kind: Service\n---\n{"), nil)
	if err == nil || !strings.Contains(err.Error(), "document 2") {
		t.Errorf("error %v", err)
	}
}

// The file is a KubeProxyConfiguration and leaves the settings of the whole machine.
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

// Configuration and manifests are replaced atomically:
// readers find the old or the new text, never a part.
func TestFiles(t *testing.T) {
	f, err := newFiles(examples)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(filepath.Dir(f.config)) })
	first, err := filepath.EvalSymlinks(f.config)
	if err != nil {
		t.Fatal(err)
	}
	before := readFile(t, f.config)
	if now, err := f.configure("10.0.0.0/8"); err != nil || now.IsZero() {
		t.Fatal(now, err)
	}
	if second, err := filepath.EvalSymlinks(f.config); err != nil || first == second {
		t.Errorf("still %s: %v", second, err)
	}
	if kept := readFile(t, first); kept != before {
		t.Errorf("the old version changed: %q", kept)
	}
	if now := readFile(t, f.config); !strings.Contains(now, "10.0.0.0/8") {
		t.Errorf("the new version is %q", now)
	}

	start := time.Now()
	when, err := f.scale("web.yaml", []netip.Addr{netip.MustParseAddr("10.0.0.7")})
	if err != nil || when.Before(start) || when.After(time.Now()) {
		t.Fatalf("scaled at %v: %v", when, err)
	}
	if text := readFile(t, filepath.Join(f.manifests, "web.yaml")); !strings.Contains(text, "10.0.0.7") {
		t.Errorf("the new manifest is\n%s", text)
	}
	if _, err := f.scale("absent.yaml", nil); err == nil {
		t.Error("no error for a file that does not exist")
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
