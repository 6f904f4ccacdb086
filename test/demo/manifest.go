//go:build linux

package main

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"sigs.k8s.io/yaml"
)

// manifests is the folder that sluice reads, which is a copy of examples/.
type manifests struct {
	dir   string // sluice watches this
	draft string // a new file is written here, then moved
}

// copyManifests copies a folder into a new one. /run is this process's own, so
// that nothing stays however it ends.
func copyManifests(from string) (manifests, error) {
	base, err := os.MkdirTemp("/run", "sluice-demo-")
	if err != nil {
		return manifests{}, fmt.Errorf("make a folder for manifests: %w", err)
	}
	m := manifests{dir: filepath.Join(base, "manifests"), draft: filepath.Join(base, "draft")}
	if err := os.CopyFS(m.dir, os.DirFS(from)); err != nil {
		return manifests{}, fmt.Errorf("copy manifests: %w", err)
	}
	return m, nil
}

// scale has a file list these backends, and returns when it was moved in place.
func (m manifests) scale(file string, backends []netip.Addr) (time.Time, error) {
	path := filepath.Join(m.dir, file)
	text, err := os.ReadFile(path)
	if err != nil {
		return time.Time{}, fmt.Errorf("read manifest: %w", err)
	}
	text, err = withBackends(text, backends)
	if err != nil {
		return time.Time{}, fmt.Errorf("edit %s: %w", file, err)
	}
	if err := os.WriteFile(m.draft, text, 0o644); err != nil {
		return time.Time{}, fmt.Errorf("write manifest: %w", err)
	}
	now := time.Now()
	if err := os.Rename(m.draft, path); err != nil {
		return time.Time{}, fmt.Errorf("replace manifest: %w", err)
	}
	return now, nil
}

// withBackends has each EndpointSlice list those of the addresses that are of
// its family. Other documents stay as they are.
func withBackends(text []byte, backends []netip.Addr) ([]byte, error) {
	documents := bytes.Split(text, []byte("\n---\n"))
	for i, text := range documents {
		var doc map[string]any
		if err := yaml.Unmarshal(text, &doc); err != nil {
			return nil, fmt.Errorf("document %d: %w", i+1, err)
		}
		if doc["kind"] != "EndpointSlice" {
			continue
		}
		doc["endpoints"] = endpoints(backends, doc["addressType"])
		edited, err := yaml.Marshal(doc)
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", i+1, err)
		}
		documents[i] = bytes.TrimRight(edited, "\n")
	}
	return append(bytes.Join(documents, []byte("\n---\n")), '\n'), nil
}

func endpoints(backends []netip.Addr, family any) []any {
	out := []any{}
	for _, a := range backends {
		if a.Is4() == (family == "IPv4") {
			out = append(out, map[string]any{"addresses": []any{a.String()}})
		}
	}
	return out
}
