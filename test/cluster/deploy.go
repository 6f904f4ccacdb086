//go:build linux

package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
)

//go:embed coredns.yaml
var coreDNS string

// sluiceImage returns the name of Sluice's image in deploy/.
func sluiceImage() (string, error) {
	file := absolute("deploy/kubernetes/base/daemonset.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	found := regexp.MustCompile(`(?m)^ +image: (\S+)$`).FindSubmatch(text)
	if found == nil {
		return "", fmt.Errorf("%s names no image", file)
	}
	return string(found[1]), nil
}

// deploy deploys Sluice as docs/install.md says, then CoreDNS.
func (m *machine) deploy(ctx context.Context, kubeconfig string) error {
	for _, step := range []struct {
		input string
		args  string
	}{
		{args: fmt.Sprintf("-n kube-system create configmap sluice-apiserver --from-literal=host=%s --from-literal=port=%d", apiAddress(), apiPort)},
		{args: "apply -k " + absolute("deploy/kubernetes/base")},
		{args: "-n kube-system rollout status daemonset/sluice --timeout=5m"},
		{args: "apply -f -", input: strings.NewReplacer("IMAGE", dnsImage, "ADDRESS", dnsService).Replace(coreDNS)},
		{args: "-n kube-system rollout status deployment/coredns --timeout=5m"},
	} {
		cmd := exec.CommandContext(ctx, m.Programs["kubectl"], append([]string{"--kubeconfig=" + kubeconfig}, strings.Fields(step.args)...)...)
		cmd.Stdin = strings.NewReader(step.input)
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("kubectl %s: %w\n%s", step.args, err, text)
		}
	}
	return nil
}
