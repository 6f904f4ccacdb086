//go:build linux

package main

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/test/harness"
)

// files are the input of Sluice: a copy of examples/, and a configuration with the layout of a mounted ConfigMap:
// config.conf is a link to ..data/config.conf, and ..data a link to the folder of the newest version.
type files struct {
	manifests string
	config    string
	version   int
}

// newFiles copies examples to /run, which is removed with this process.
func newFiles(examples string) (*files, error) {
	base, err := os.MkdirTemp("/run", "sluice-demo-")
	if err != nil {
		return nil, fmt.Errorf("make a folder: %w", err)
	}
	f := &files{manifests: filepath.Join(base, "manifests"), config: filepath.Join(base, "config.conf")}
	if err := os.CopyFS(f.manifests, os.DirFS(examples)); err != nil {
		return nil, fmt.Errorf("copy manifests: %w", err)
	}
	if _, err := f.configure(); err != nil {
		return nil, err
	}
	return f, os.Symlink(filepath.Join("..data", filepath.Base(f.config)), f.config)
}

// configure changes the configuration: NodePorts at the node's addresses in these ranges, or at its primary ones if
// there are none. It returns when the new version became visible.
func (f *files) configure(nodePorts ...string) (time.Time, error) {
	text, err := configuration(nodePorts)
	if err != nil {
		return time.Time{}, err
	}
	f.version++
	base, version := filepath.Dir(f.config), fmt.Sprintf("..%d", f.version)
	if err := os.Mkdir(filepath.Join(base, version), 0o755); err != nil {
		return time.Time{}, fmt.Errorf("make a folder for the configuration: %w", err)
	}
	if err := os.WriteFile(filepath.Join(base, version, filepath.Base(f.config)), []byte(text), 0o644); err != nil {
		return time.Time{}, fmt.Errorf("write configuration: %w", err)
	}
	draft := filepath.Join(base, "..new")
	if err := os.Symlink(version, draft); err != nil {
		return time.Time{}, fmt.Errorf("link the configuration: %w", err)
	}
	now := time.Now()
	return now, os.Rename(draft, filepath.Join(base, "..data"))
}

// configuration returns a KubeProxyConfiguration that leaves the settings of the whole machine as they are.
func configuration(nodePorts []string) (string, error) {
	own, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return "", fmt.Errorf("read the OOM score of this process: %w", err)
	}
	text := "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n" +
		"mode: nftables\nclusterCIDR: 10.180.0.0/16,fd00:10:180::/48\n" +
		"conntrack:\n  maxPerCore: 0\noomScoreAdj: " + strings.TrimSpace(string(own)) + "\n"
	if len(nodePorts) > 0 {
		text += fmt.Sprintf("nodePortAddresses: [\"%s\"]\n", strings.Join(nodePorts, `", "`))
	}
	return text, nil
}

// scale puts these backends into the EndpointSlices of a manifest. It returns when the new text became visible.
func (f *files) scale(name string, backends []netip.Addr) (time.Time, error) {
	path := filepath.Join(f.manifests, name)
	text, err := os.ReadFile(path)
	if err != nil {
		return time.Time{}, fmt.Errorf("read manifest: %w", err)
	}
	if text, err = withBackends(text, backends); err != nil {
		return time.Time{}, fmt.Errorf("edit %s: %w", name, err)
	}
	now := time.Now()
	return now, harness.Replace(path, text)
}

// withBackends replaces the endpoints of each EndpointSlice by the addresses of
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
		endpoints := []any{}
		for _, a := range backends {
			if a.Is4() == (doc["addressType"] == "IPv4") {
				endpoints = append(endpoints, map[string]any{"addresses": []any{a.String()}})
			}
		}
		doc["endpoints"] = endpoints
		edited, err := yaml.Marshal(doc)
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", i+1, err)
		}
		documents[i] = bytes.TrimRight(edited, "\n")
	}
	return append(bytes.Join(documents, []byte("\n---\n")), '\n'), nil
}
