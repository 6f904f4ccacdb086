//go:build linux

package deploy

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/internal/config"
)

// windowsFile reads a manifest of the overlay for Windows.
func windowsFile(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(projectPath("deploy/kubernetes/windows"), name))
	must(t, err)
	must(t, yaml.UnmarshalStrict(text, into))
}

// The program for Windows takes the command and the configuration of the DaemonSet without a warning.
func TestTheConfigurationForWindows(t *testing.T) {
	var ds appsv1.DaemonSet
	var cm corev1.ConfigMap
	windowsFile(t, "daemonset.yaml", &ds)
	windowsFile(t, "configmap.yaml", &cm)
	fs := pflag.NewFlagSet("sluice", pflag.ContinueOnError)
	flags := config.NewFlags(fs)
	must(t, fs.Parse(ds.Spec.Template.Spec.Containers[0].Command[1:]))
	cfg, warnings, err := flags.Load(config.Env{ReadFile: func(name string) ([]byte, error) {
		if name != `C:\etc\sluice\config.conf` {
			return nil, os.ErrNotExist
		}
		return []byte(cm.Data["config.conf"]), nil
	}}, config.Options{Modes: []string{"kernelspace", "userspace"}})
	if err != nil || len(warnings) > 0 {
		t.Fatal(warnings, err)
	}
	if cfg.Mode != "kernelspace" || cfg.HNS.Network != "cbr0" || !cfg.NodePorts.All {
		t.Errorf("%+v", cfg)
	}
}

// The overlay has the rights of the overlay for Linux, and nothing else of it.
func TestTheOverlayForWindows(t *testing.T) {
	all := objects(t, run(t, tool("kubectl"), "kustomize", projectPath("deploy/kubernetes/windows")))
	var names []string
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	want := "ClusterRole sluice, ClusterRoleBinding sluice, ConfigMap sluice-windows, DaemonSet sluice-windows, " +
		"ServiceAccount sluice"
	if got := strings.Join(names, ", "); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
