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

// kubectl is the program as the administrator of a cluster.
type kubectl struct{ program, kubeconfig string }

// run runs it with an input, and returns its output.
func (k kubectl) run(ctx context.Context, input string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, k.program, append([]string{"--kubeconfig=" + k.kubeconfig}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// nameAPIServer creates the ConfigMap with the address of the API server (docs/install.md).
func (k kubectl) nameAPIServer(ctx context.Context) error {
	_, err := k.run(ctx, "", "-n", "kube-system", "create", "configmap", "sluice-apiserver",
		fmt.Sprintf("--from-literal=host=%s", apiAddress()), fmt.Sprintf("--from-literal=port=%d", apiPort))
	return err
}

// applyCoreDNS applies the manifests of CoreDNS.
func (k kubectl) applyCoreDNS(ctx context.Context) error {
	manifests := strings.NewReplacer("IMAGE", dnsImage, "ADDRESS", dnsService).Replace(coreDNS)
	_, err := k.run(ctx, manifests, "apply", "-f", "-")
	return err
}

// rollOut waits until the pods of a workload are new and ready.
func (k kubectl) rollOut(ctx context.Context, namespace, workload string) error {
	_, err := k.run(ctx, "", "-n", namespace, "rollout", "status", workload, "--timeout=5m")
	return err
}

// deploy deploys Sluice as docs/install.md says, then CoreDNS.
func (k kubectl) deploy(ctx context.Context) error {
	if err := k.nameAPIServer(ctx); err != nil {
		return err
	}
	if _, err := k.run(ctx, "", "apply", "-k", absolute("deploy/kubernetes/base")); err != nil {
		return err
	}
	if err := k.rollOut(ctx, "kube-system", "daemonset/sluice"); err != nil {
		return err
	}
	if err := k.applyCoreDNS(ctx); err != nil {
		return err
	}
	return k.rollOut(ctx, "kube-system", "deployment/coredns")
}
