//go:build linux

package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"text/template"

	"golang.org/x/sys/unix"
)

//go:embed containerd.toml
var containerdConfig string

//go:embed kubelet.yaml
var kubeletConfig string

//go:embed cni.json
var cniConfig string

const containerdSocket = "/run/containerd/containerd.sock"

// podNetwork is the second order to a node: the addresses of its pods, and those behind other machines, by their
// number.
type podNetwork struct {
	Own []string
	Via map[int][]string
}

// runNode is a node, the first process of its namespaces.
func runNode() error {
	// A cgroup namespace is one of a thread: all programs of a node start from the thread that has made it, and
	// nsenter finds it at the first thread.
	runtime.LockOSThread()
	in := receive()
	var o nodeOrder
	if err := in.next(&o); err != nil {
		return err
	}
	n := &node{nodeOrder: o, processes: newReaper()}
	if err := errors.Join(n.cgroups(), n.files()); err != nil {
		return err
	}
	if err := n.network(); err != nil {
		return err
	}
	if err := n.start(); err != nil {
		return err
	}
	var pods podNetwork
	if err := in.next(&pods); err != nil {
		return err
	}
	if err := n.connectPods(pods); err != nil {
		return err
	}
	in.exitAtEnd()
	return nil
}

// node is a machine with kubelet and containerd.
type node struct {
	nodeOrder
	processes *reaper
}

// cgroups makes the cgroups of this process the roots that the node sees.
func (n *node) cgroups() error {
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("make a cgroup namespace: %w", err)
	}
	for _, dir := range n.Cgroups {
		if !isV2(dir) {
			continue
		}
		if err := enter([]string{filepath.Join(dir, "init")}, os.Getpid()); err != nil {
			return err
		}
		if err := delegate(dir); err != nil {
			return err
		}
	}
	return nil
}

// files hides the folders of the machine in which a node writes.
func (n *node) files() error {
	own := filepath.Join(root, n.Name)
	mounts := []struct{ from, at, kind string }{
		{filepath.Join(own, "run"), "/run", ""},
		{filepath.Join(own, "lib"), "/var/lib", ""},
		{filepath.Join(own, "log"), "/var/log", ""},
		{"proc", "/proc", "proc"},
		{"sysfs", "/sys", "sysfs"},
		{"bpf", "/sys/fs/bpf", "bpf"},
	}
	for _, m := range mounts {
		var flags uintptr
		if m.kind == "" {
			flags = unix.MS_BIND
			if err := os.MkdirAll(m.from, 0o755); err != nil {
				return err
			}
		}
		if err := unix.Mount(m.from, m.at, m.kind, flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	if err := errors.Join(mountCgroups("/sys/fs/cgroup"), hideTunables(own)); err != nil {
		return err
	}
	// Pods mount folders of the node with the propagation HostToContainer.
	return unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")
}

// hideTunables hides the kernel parameters that kubelet sets and that no namespace has: it finds its own values in
// their place, and so sets none of the machine (setupKernelTunables of pkg/kubelet/cm/container_manager_linux.go).
func hideTunables(dir string) error {
	values := map[string]string{
		"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
		"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
	}
	for name, value := range values {
		file := filepath.Join(dir, "sys", name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := unix.Mount(file, filepath.Join("/proc/sys", name), "", unix.MS_BIND, ""); err != nil &&
			!errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("hide the kernel parameter %s: %w", name, err)
		}
	}
	return nil
}

func (n *node) network() error {
	if err := unix.Sethostname([]byte(n.Name)); err != nil {
		return err
	}
	if err := errors.Join(setUp("lo"), configure("eth0", n.Number), forwarding()); err != nil {
		return err
	}
	return addRoutes(1, []string{"0.0.0.0/0", "::/0"})
}

// start starts containerd, imports the images, and starts kubelet.
func (n *node) start() error {
	if err := errors.Join(
		writeTemplate("/run/containerd.toml", containerdConfig, map[string]string{"Plugins": pluginFolder()}),
		writeTemplate("/run/kubelet.yaml", kubeletConfig, map[string]string{"DNS": dnsService, "Socket": containerdSocket}),
		os.WriteFile("/run/resolv.conf", nil, 0o644)); err != nil {
		return err
	}
	if err := n.processes.daemon(os.Stderr, n.Programs["containerd"], "--config=/run/containerd.toml",
		"--log-level=warn"); err != nil {
		return err
	}
	if err := poll(func(context.Context) error {
		return n.processes.run(nil, n.Programs["ctr"], "--address="+containerdSocket, "version")
	}); err != nil {
		return fmt.Errorf("containerd does not answer: %w", err)
	}
	for _, image := range n.Images {
		if err := n.processes.run(os.Stderr, n.Programs["ctr"], "--address="+containerdSocket, "--namespace=k8s.io", "images",
			"import", image); err != nil {
			return err
		}
	}
	if err := n.chooseIptables(); err != nil {
		return err
	}
	addresses := lan(n.Number)
	return n.processes.daemon(os.Stderr, n.Programs["kubelet"], "--config=/run/kubelet.yaml",
		"--kubeconfig="+kubeconfigOf(nodeUser(n.Name)),
		"--hostname-override="+n.Name, fmt.Sprintf("--node-ip=%s,%s", addresses[0].Addr(), addresses[1].Addr()))
}

// chooseIptables makes links to one variant of iptables, for kubelet and kube-proxy: legacy on each second node, nft
// on the others. The programs have the same paths in kube-proxy's image.
func (n *node) chooseIptables() error {
	const dir = "/run/iptables"
	multi := "/usr/sbin/xtables-nft-multi"
	if n.Number%2 != 0 {
		multi = "/usr/sbin/xtables-legacy-multi"
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for _, name := range []string{
		"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore",
	} {
		if err := os.Symlink(multi, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return os.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// connectPods configures the network plugin, which makes the node ready.
func (n *node) connectPods(pods podNetwork) error {
	for number, prefixes := range pods.Via {
		if err := addRoutes(number, prefixes); err != nil {
			return err
		}
	}
	return writeTemplate("/run/cni/net.d/10-ptp.conflist", cniConfig, pods.Own)
}

// writeTemplate writes a file, whole or not at all.
func writeTemplate(path, text string, values any) error {
	t, err := template.New(filepath.Base(path)).Parse(text)
	if err != nil {
		return err
	}
	var content bytes.Buffer
	if err := errors.Join(t.Execute(&content, values), os.MkdirAll(filepath.Dir(path), 0o755)); err != nil {
		return err
	}
	return errors.Join(os.WriteFile(path+".new", content.Bytes(), 0o644), os.Rename(path+".new", path))
}
