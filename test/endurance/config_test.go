//go:build linux

package endurance

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"github.com/sluice-proxy/sluice/test/lab"
)

// settings are fields of a configuration file that replace the default ones.
type settings map[string]any

// configuration returns the text of a configuration file.
func configuration(s settings) string {
	all := object{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
		"clusterCIDR": clusterCIDRs, "nodePortAddresses": []string{"primary"},
	}
	maps.Copy(all, s)
	text, err := json.Marshal(all)
	if err != nil {
		panic(err) // a mistake in the test's text
	}
	return string(text) + "\n"
}

// config writes a configuration into a folder like kubelet writes a ConfigMap, and returns the name of the file.
func (w *testEnv) config(dir string, s settings) string {
	w.Helper()
	w.replaceConfigMap(dir, configuration(s))
	return filepath.Join(dir, "config.conf")
}

// replaceConfigMap replaces the file of a mounted ConfigMap atomically.
func (w *testEnv) replaceConfigMap(dir, text string) {
	w.Helper()
	data, err := os.MkdirTemp(dir, "..2026_")
	w.must(err)
	w.must(os.WriteFile(filepath.Join(data, "config.conf"), []byte(text), 0o644))
	old, _ := os.Readlink(filepath.Join(dir, "..data")) // does not exist the first time
	w.must(os.Symlink(filepath.Base(data), filepath.Join(dir, "..data_tmp")))
	w.must(os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	if old == "" {
		w.must(os.Symlink("..data/config.conf", filepath.Join(dir, "config.conf")))
		return
	}
	w.must(os.RemoveAll(filepath.Join(dir, old)))
}

// waitMasquerade waits until backends see the address of the node, or of the client, as source.
func (w *testEnv) waitMasquerade(want bool) {
	w.Helper()
	for _, way := range w.ways()[:2] {
		w.eventually(func() error {
			r := way.From.Dial(lab.TCP, way.To)
			if r.Outcome != lab.Answered || r.Masqueraded() != want {
				return fmt.Errorf("%s: %s, want masquerading: %t", way, r, want)
			}
			return nil
		})
	}
}
