//go:build linux

package takeover

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-proxy/sluice/test/lab"
)

// mode is a mode of kube-proxy, with the variant of iptables that it uses.
type mode struct {
	name     string // of the test and of the recorded rules
	mode     string // value of --proxy-mode
	iptables string // multi-call binary of the variant; empty: none
}

func modes() []mode {
	return []mode{
		{"nftables", "nftables", ""},
		{"iptables-nft", "iptables", "xtables-nft-multi"},
		{"iptables-legacy", "iptables", "xtables-legacy-multi"},
	}
}

// program returns the path of the real kube-proxy.
func program() string {
	return cmp.Or(os.Getenv("KUBE_PROXY"), filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kube-proxy"))
}

// hasProgram returns an error if there is no real kube-proxy.
func hasProgram() error {
	if _, err := os.Stat(program()); err != nil {
		return fmt.Errorf("there is no kube-proxy: run `make test-assets` to build it, or name another in KUBE_PROXY: %w",
			err)
	}
	return nil
}

// kubeProxy is a real kube-proxy process on node A.
type kubeProxy struct {
	*testEnv
	pid  int
	stop func() // sends SIGTERM and waits
	log  *bytes.Buffer
}

// kubeProxy starts a real kube-proxy and waits until its rules work.
func (w *testEnv) kubeProxy(m mode, more ...string) *kubeProxy {
	w.Helper()
	kubeconfig, err := w.Kubeconfig("")
	w.must(err)
	cmd := exec.Command(program(), append([]string{
		"--kubeconfig", kubeconfig, "--hostname-override", w.lab.NodeA.Name(),
		"--proxy-mode", m.mode, "--cluster-cidr", clusterCIDRs,
		"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
	}, more...)...)
	cmd.Args[0] = "kube-proxy"
	cmd.Env = append(os.Environ(), "PATH="+programs(w.T, m.iptables)+":"+os.Getenv("PATH"))
	k := &kubeProxy{testEnv: w, log: &bytes.Buffer{}}
	cmd.Stdout, cmd.Stderr = k.log, k.log
	wait, err := w.lab.NodeA.Start(cmd)
	w.must(err)
	k.pid = cmd.Process.Pid
	k.stop = func() {
		w.must(cmd.Process.Signal(syscall.SIGTERM))
		_ = wait() // it ends with a signal error
	}
	w.eventually(func() error {
		if err := w.checkReachable(lab.Soon); err != nil {
			return fmt.Errorf("with kube-proxy: %w", err)
		}
		return nil
	})
	return k
}

// programs creates a folder with the programs of iptables of a variant.
func programs(t *testing.T, variant string) string {
	t.Helper()
	dir := t.TempDir()
	if variant == "" {
		return dir
	}
	path, err := exec.LookPath(variant)
	if err != nil {
		t.Fatalf("find a variant of iptables: %v", err)
	}
	for _, name := range []string{
		"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore",
	} {
		if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// dump lists the rules of node A, without volatile and empty parts.
func (w *testEnv) dump() string {
	w.Helper()
	var b strings.Builder
	for _, command := range [][]string{
		{"iptables-legacy-save"},
		{"ip6tables-legacy-save"},
		{"iptables-nft-save"},
		{"ip6tables-nft-save"},
		{"nft", "list", "tables"},
	} {
		fmt.Fprintf(&b, "== %s\n", strings.Join(command, " "))
		for line := range strings.Lines(w.lab.NodeA.MustRun(command...)) {
			if isRule(line) {
				b.WriteString(line)
			}
		}
	}
	return b.String()
}

// isRule leaves out comments, which contain the time; built-in chains, which have counters, and
// their tables, which are never deleted; and the tables of Sluice.
func isRule(line string) bool {
	for _, start := range []string{
		"#", "*", "COMMIT", "table ip filter", "table ip nat", "table ip mangle", "table ip6 filter", "table ip6 nat",
		"table ip6 mangle", "table ip sluice", "table ip6 sluice",
	} {
		if strings.HasPrefix(line, start) {
			return false
		}
	}
	return !strings.HasPrefix(line, ":") || strings.Contains(line, " - ")
}
