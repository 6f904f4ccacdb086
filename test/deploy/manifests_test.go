//go:build linux

package deploy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// testManifests verifies that the API server accepts every manifest in strict validation.
func testManifests(t *testing.T, c *cluster) {
	c.kubectl(t, "apply", "-f", "testdata/podmonitor-crd.yaml")
	c.kubectl(t, "wait", "--for=condition=Established", "crd/podmonitors.monitoring.coreos.com", "--timeout=20s")
	// The condition Established is set shortly before the kind is served.
	eventually(t, func() error {
		_, err := runCommand(t, tool("kubectl"), "--kubeconfig="+c.kubeconfig, "get", "podmonitors", "-A")
		return err
	})
	strict := []string{"apply", "--dry-run=server", "--validate=strict"}
	for _, folder := range []string{
		"base", "canary", "canary-ebpf", "canary-iptables", "canary-ipvs", "canary-userspace", "cleanup", "cleanup-ebpf",
		"cleanup-iptables", "ebpf", "iptables", "ipvs", "monitoring", "preflight", "sysctls", "userspace", "windows",
	} {
		t.Run(folder, func(t *testing.T) {
			path := filepath.Join(projectPath("deploy/kubernetes"), folder)
			// Strict validation rejects unknown fields instead of dropping them.
			out := c.kubectl(t, append(strict, "-k", path)...)
			if n := strings.Count(out, "(server dry run)"); n != len(objects(t, c.kubectl(t, "kustomize", path))) {
				t.Errorf("%d objects were accepted:\n%s", n, out)
			}
		})
	}
	for _, name := range []string{"sluice.yaml", "sluice-iptables.yaml", "sluice-ipvs.yaml", "sluice-ebpf.yaml"} {
		t.Run("static pod "+name, func(t *testing.T) {
			path := filepath.Join(projectPath("deploy/static-pod"), name)
			c.kubectl(t, append(strict, "-f", path)...)
			text, err := os.ReadFile(path)
			must(t, err)
			// kubelet runs no static pod that refers to API objects.
			for _, word := range []string{"configMap", "secret:", "serviceAccount"} {
				if strings.Contains(string(text), word) {
					t.Errorf("a static pod must not contain %q", word)
				}
			}
		})
	}
	const term = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
	for name, set := range map[string]string{
		"everything": "apiServer.host=10.0.0.1,apiServer.port=443,sysctls.enabled=true,metrics.scrape=podMonitor," +
			"metrics.podMonitor.labels.release=prometheus,maxUnavailable=1,imagePullSecrets[0].name=pull," +
			"extraArgs[0]=--v=4,podAnnotations.a=b,image.tag=v9,resources.limits.memory=256Mi," +
			term + ".matchExpressions[0].key=x," + term + ".matchExpressions[0].operator=Exists",
		"annotations":           "metrics.scrape=annotations",
		"mode iptables":         "config.mode=iptables,sysctls.enabled=true",
		"mode ipvs":             "config.mode=ipvs,metrics.scrape=podMonitor",
		"mode ebpf":             "config.mode=ebpf,sysctls.enabled=true",
		"mode userspace":        "config.mode=userspace,sysctls.enabled=true,metrics.scrape=podMonitor",
		"an existing ConfigMap": "existingConfigMap=kube-proxy",
	} {
		t.Run("chart with "+name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "chart.yaml")
			must(t, os.WriteFile(file, []byte(template(t, "--set="+set)), 0o600))
			c.kubectl(t, append(strict, "-f", file)...)
		})
	}
}

// testChart installs, upgrades and uninstalls the chart, and verifies that the notes match the values.
func testChart(t *testing.T, c *cluster) {
	chart := projectPath("deploy/helm/sluice")
	bare := c.helm(t, "install", "sluice", chart)
	for _, warning := range []string{"create configmap sluice-apiserver", "config.clusterCIDR"} {
		if !strings.Contains(bare, warning) {
			t.Errorf("with the default values the notes lack %q:\n%s", warning, bare)
		}
	}
	full := c.helm(t, "upgrade", "sluice", chart, "--set=apiServer.host=10.0.0.1,config.clusterCIDR=10.244.0.0/16")
	if strings.Contains(full, "create configmap") || strings.Contains(full, "are not set") {
		t.Errorf("with all values set the notes warn:\n%s", full)
	}
	maps := c.configMaps(t)
	if at := maps["sluice-apiserver"]; at["host"] != "10.0.0.1" || at["port"] != "6443" {
		t.Errorf("the address of the API server is %v", at)
	}
	if !strings.Contains(maps["sluice"]["config.conf"], "clusterCIDR: 10.244.0.0/16\n") {
		t.Errorf("the configuration is\n%s", maps["sluice"]["config.conf"])
	}
	c.helm(t, "uninstall", "sluice", "--wait", "--timeout="+time.Minute.String())
	out := c.kubectl(t, "get", "daemonsets,clusterroles,clusterrolebindings", "-A", "-l",
		"app.kubernetes.io/name=sluice", "-o", "name")
	if out != "" {
		t.Errorf("remaining after uninstall:\n%s", out)
	}
}
