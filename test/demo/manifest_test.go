//go:build linux

package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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

func TestWithBackendsSaysWhere(t *testing.T) {
	_, err := withBackends([]byte("kind: Service\n---\n{"), nil)
	if err == nil || !strings.Contains(err.Error(), "document 2") {
		t.Errorf("error %v", err)
	}
}

// Somebody who reads the file at any moment sees the old text or the new.
func TestScaleReplacesTheFile(t *testing.T) {
	dir := t.TempDir()
	m := manifests{dir: filepath.Join(dir, "m"), draft: filepath.Join(dir, "draft")}
	path := filepath.Join(m.dir, "web.yaml")
	if err := os.Mkdir(m.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(before), 0o644); err != nil {
		t.Fatal(err)
	}
	old, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = old.Close() }()
	start := time.Now()
	when, err := m.scale("web.yaml", []netip.Addr{netip.MustParseAddr("10.0.0.7")})
	if err != nil || when.Before(start) || when.After(time.Now()) {
		t.Fatalf("scaled at %v: %v", when, err)
	}
	kept := make([]byte, len(before))
	if _, err := old.ReadAt(kept, 0); err != nil || string(kept) != before {
		t.Errorf("the old file was written over: %v", err)
	}
	text, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(text), "10.0.0.7") {
		t.Errorf("the new file: %v\n%s", err, text)
	}
	if names, err := os.ReadDir(m.dir); err != nil || len(names) != 1 {
		t.Errorf("in the folder: %v %v", names, err)
	}
	if _, err := m.scale("absent.yaml", nil); err == nil {
		t.Error("no error for a file that is not there")
	}
}
