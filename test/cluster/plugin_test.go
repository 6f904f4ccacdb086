//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// plugin runs kubectl sluice: the real kubectl finds the plugin on the PATH.
func (c *testCluster) plugin(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, messages bytes.Buffer
	cmd := exec.Command(c.programs["kubectl"], append([]string{"sluice"}, args...)...)
	cmd.Env = append(os.Environ(), "PATH="+c.work+":"+os.Getenv("PATH"), "KUBECONFIG="+kubeconfigIn(c.dir))
	cmd.Stdout, cmd.Stderr = &out, &messages
	err := cmd.Run()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		t.Fatal(err)
	}
	return out.String(), messages.String(), cmd.ProcessState.ExitCode()
}

// testPlugin asks Sluice through the API server, as an administrator over WebSockets, and with only the rights in the
// documentation over SPDY.
func testPlugin(t *testing.T, c *testCluster) {
	must(t, os.Symlink(c.programs["sluice"], filepath.Join(c.work, "kubectl-sluice")))
	c.install(t, "nftables")
	c.kubectl(t, "apply", "-f", "testdata/web.yaml")
	c.rollOut(t, "default", "deployment/web")
	c.applyRole(t)
	for _, user := range []string{"", "--as=operator"} {
		t.Run("user "+user, func(t *testing.T) { c.askByPlugin(t, strings.Fields(user)) })
	}
	_, stderr, status := c.plugin(t, "status", "--as=nobody")
	if status != 2 || !strings.Contains(stderr, "is forbidden") {
		t.Errorf("without rights: status %d, %s", status, stderr)
	}
}

// applyRole gives a user named operator the rights in the documentation.
func (c *testCluster) applyRole(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(absolute("docs/commands.md"))
	must(t, err)
	_, role, found := strings.Cut(string(text), "```yaml\n# The rights that kubectl sluice needs")
	role, _, ended := strings.Cut(role, "```")
	if !found || !ended {
		t.Fatal("docs/commands.md has no block with the rights of kubectl sluice")
	}
	file := filepath.Join(t.TempDir(), "role.yaml")
	must(t, os.WriteFile(file, []byte("#"+role), 0o600))
	c.kubectl(t, "apply", "-f", file)
}

func (c *testCluster) askByPlugin(t *testing.T, flags []string) {
	ask := func(args ...string) string {
		t.Helper()
		stdout, stderr, status := c.plugin(t, append(args, flags...)...)
		if status != 0 {
			t.Fatalf("kubectl sluice %v: status %d\n%s%s", args, status, stdout, stderr)
		}
		return stdout
	}
	table := ask("status")
	for _, node := range nodeNames() {
		if !regexp.MustCompile(`(?m)^` + node + ` +v\S+ +\w+ +healthy +\S+ ago `).MatchString(table) {
			t.Errorf("%s is not in the table, or not healthy:\n%s", node, table)
		}
	}
	if one := ask("status", "--node=node-b"); !regexp.MustCompile(`(?m)^Node +node-b`).MatchString(one) {
		t.Errorf("want the whole status of node-b:\n%s", one)
	}
	if list := ask("get", "services", "-n", "default", "--node", "node-a"); !strings.Contains(list, "default    web ") {
		t.Errorf("want the Service default/web:\n%s", list)
	}
	if list := ask("events", "--node=node-a"); !strings.Contains(list, " ServicesInForce ") {
		t.Errorf("want the start of Sluice:\n%s", list)
	}

	var pods struct {
		Items []struct {
			Metadata struct{ Name string }
			Spec     struct{ NodeName string }
			Status   struct{ PodIP string }
		}
	}
	must(t, json.Unmarshal([]byte(c.kubectl(t, "get", "pods", "-l", "app=web", "-o", "json")), &pods))
	for _, pod := range pods.Items {
		for _, source := range []string{"default/" + pod.Metadata.Name, pod.Status.PodIP} {
			answer := ask("explain", source, "default/web:80")
			if !strings.Contains(answer, pod.Status.PodIP) || !strings.Contains(answer, "alanced") {
				t.Errorf("from %s on %s:\n%s", source, pod.Spec.NodeName, answer)
			}
		}
	}
	if len(pods.Items) == 0 {
		t.Error("no pod has the label app=web")
	}
}
