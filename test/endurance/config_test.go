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

// settings are fields of a configuration file, in place of the ordinary ones.
type settings map[string]any

// configuration is the text of a file.
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

// config puts a configuration into a folder as kubelet puts a ConfigMap, and
// returns the name of the file.
func (w *world) config(dir string, s settings) string {
	w.Helper()
	w.swap(dir, configuration(s))
	return filepath.Join(dir, "config.conf")
}

// swap gives a file of a mounted ConfigMap another text.
func (w *world) swap(dir, text string) {
	w.Helper()
	data, err := os.MkdirTemp(dir, "..2026_")
	w.must(err)
	w.must(os.WriteFile(filepath.Join(data, "config.conf"), []byte(text), 0o644))
	old, _ := os.Readlink(filepath.Join(dir, "..data")) // the first time there is none
	w.must(os.Symlink(filepath.Base(data), filepath.Join(dir, "..data_tmp")))
	w.must(os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	if old == "" {
		w.must(os.Symlink("..data/config.conf", filepath.Join(dir, "config.conf")))
		return
	}
	w.must(os.RemoveAll(filepath.Join(dir, old)))
}

// masquerades waits until backends see the node's address in place of the
// client's, or not.
func (w *world) masquerades(want bool) {
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
