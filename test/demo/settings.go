//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// settings are a configuration file as a mounted ConfigMap has it: a link that
// leads over the link ..data into a folder. A change is a new folder, and ..data
// is moved over to it.
type settings struct {
	dir     string
	version int
}

const settingsFile = "config.conf"

func newSettings(dir string) (*settings, error) {
	s := &settings{dir: dir}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make a folder for the configuration: %w", err)
	}
	if _, err := s.swap(nil); err != nil {
		return nil, err
	}
	if err := os.Symlink(filepath.Join("..data", settingsFile), s.path()); err != nil {
		return nil, fmt.Errorf("link the configuration: %w", err)
	}
	return s, nil
}

func (s *settings) path() string { return filepath.Join(s.dir, settingsFile) }

// swap has NodePorts answer at the node's addresses in these ranges, at its
// primary ones if there are none. It returns when the new file was in place.
func (s *settings) swap(nodePorts []string) (time.Time, error) {
	text, err := configuration(nodePorts)
	if err != nil {
		return time.Time{}, err
	}
	s.version++
	folder := fmt.Sprintf("..%d", s.version)
	if err := os.Mkdir(filepath.Join(s.dir, folder), 0o755); err != nil {
		return time.Time{}, fmt.Errorf("make a folder for the configuration: %w", err)
	}
	if err := os.WriteFile(filepath.Join(s.dir, folder, settingsFile), []byte(text), 0o644); err != nil {
		return time.Time{}, fmt.Errorf("write configuration: %w", err)
	}
	draft := filepath.Join(s.dir, "..new")
	if err := os.Symlink(folder, draft); err != nil {
		return time.Time{}, fmt.Errorf("link the configuration: %w", err)
	}
	now := time.Now()
	if err := os.Rename(draft, filepath.Join(s.dir, "..data")); err != nil {
		return time.Time{}, fmt.Errorf("replace configuration: %w", err)
	}
	return now, nil
}

// configuration is a file of kube-proxy's. What can be set only for the whole
// machine is left as it is.
func configuration(nodePorts []string) (string, error) {
	own, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return "", fmt.Errorf("read configuration of this process: %w", err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"+
		"mode: nftables\nclusterCIDR: 10.180.0.0/16,fd00:10:180::/48\n"+
		"conntrack:\n  maxPerCore: 0\noomScoreAdj: %s\n", strings.TrimSpace(string(own)))
	if len(nodePorts) > 0 {
		fmt.Fprintf(&b, "nodePortAddresses: [%s]\n", `"`+strings.Join(nodePorts, `", "`)+`"`)
	}
	return b.String(), nil
}
