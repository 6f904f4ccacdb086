//go:build linux

package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// node is a fresh node with a client and the pods behind the probed Services,
// and the proxy that is measured on it.
type node struct {
	*server
	o       options
	kind    kind
	program string
	dir     string // for the proxy's files
	host    *lab.Host
	client  *lab.Host
	pods    [2]*lab.Host
	behind  map[int]int // which of the pods is behind a probed Service

	proxy *process
	watch *watcher
}

func newNode(t lab.T, s *server, o options, k kind) (*node, error) {
	l := lab.New(t, lab.Options{Timeout: 20 * time.Millisecond})
	n := &node{server: s, o: o, kind: k, program: o.kubeProxy, host: l.NodeA, behind: map[int]int{}}
	n.client = l.Pod(l.NodeA, clientAddr)
	for i, a := range podAddrs() {
		n.pods[i] = l.Pod(l.NodeA, a.String())
		n.pods[i].Serve(lab.TCP, podPort)
	}
	s.Forward(t, l.NodeA)
	var err error
	if n.dir, err = os.MkdirTemp("/run", "versus-"); err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = os.RemoveAll(n.dir) })
	if k.ours() {
		n.program = o.sluice
	}
	return n, n.settle()
}

// settle puts every probed Service on the first pod: the last proxy left them
// anywhere.
func (n *node) settle() error {
	for _, i := range n.probed {
		if err := n.set(context.Background(), i, 0, n.pods[0].Addr4()); err != nil {
			return err
		}
	}
	return nil
}

// launch starts the proxy.
func (n *node) launch() error {
	kubeconfig, err := n.Kubeconfig("")
	if err != nil {
		return err
	}
	config := filepath.Join(n.dir, "config.yaml")
	if err := os.WriteFile(config, []byte(n.kind.config(kubeconfig)), 0o600); err != nil {
		return err
	}
	if v := n.kind.variant; v != "" {
		if _, err := n.host.Run("*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n", "iptables-"+v+"-restore", "--noflush"); err != nil {
			return err
		}
	}
	if n.proxy, err = startProcess(n.host, exec.Command(n.program, "--config="+config)); err != nil {
		return err
	}
	n.watch = watch(n.proxy.pid)
	return nil
}

// halt stops the proxy.
func (n *node) halt() error {
	n.watch.stop()
	return n.proxy.stop()
}

// versions are those of what is measured.
func (n *node) versions() string {
	version, err := exec.Command(n.program, "--version").CombinedOutput()
	if err != nil {
		return err.Error()
	}
	text := string(version)
	tool := map[string]string{"nftables": "nft", "iptables": "iptables"}[n.kind.mode]
	if !n.kind.ours() {
		more, _ := n.host.Run("", tool, "--version") // kube-proxy says more if there is none
		text += more
	}
	return oneLine(text)
}

// reaches asks a Service once, and says which backend answers.
func (n *node) reaches(i int) (netip.Addr, error) {
	r := n.client.Dial(lab.TCP, target(i))
	if r.Outcome != lab.Answered {
		return netip.Addr{}, fmt.Errorf("service %d: %s", i, r)
	}
	return r.Backend.Addr(), nil
}

// move puts a probed Service on its other pod, which is returned.
func (n *node) move(i int) (netip.Addr, error) {
	n.behind[i] = 1 - n.behind[i]
	pod := n.pods[n.behind[i]].Addr4()
	return pod, n.set(context.Background(), i, 0, pod)
}

// spent runs f and returns the time the proxy has run on processors meanwhile.
func (n *node) spent(f func() error) (time.Duration, error) {
	before, err := n.proxy.cpu()
	if err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	after, err := n.proxy.cpu()
	return after - before, err
}
