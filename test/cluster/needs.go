//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// findPrograms returns the paths of the programs of a cluster, by name, or an error that names all that the machine
// lacks.
func findPrograms() (map[string]string, error) {
	var lacks []string
	if os.Geteuid() != 0 {
		lacks = append(lacks, "the rights of root: containerd, kubelet and runc need them")
	}
	programs := map[string]string{}
	for target, names := range map[string][]string{
		folder("KUBEBUILDER_ASSETS", "test-assets"): {"etcd", "kube-apiserver", "kube-proxy"},
		folder("TEST_CLUSTER", "test-cluster"):      {"kube-controller-manager", "kube-scheduler", "kubelet"},
		folder("TEST_TOOLS", "test-tools"):          {"kubectl", "coredns"},
		"bin":                                       {"sluice"}, ".cache/bin": {"pod"},
	} {
		for _, name := range names {
			programs[name] = absolute(filepath.Join(target, name))
			if _, err := os.Stat(programs[name]); err != nil {
				lacks = append(lacks, fmt.Sprintf("%s, which make cluster builds: %v", name, err))
			}
		}
	}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr", "runc", "nsenter", "setpriv"} {
		path, err := exec.LookPath(name)
		if err != nil {
			lacks = append(lacks, fmt.Sprintf("%s, which make cluster installs on Debian and Ubuntu: %v", name, err))
		}
		programs[name] = path
	}
	if pluginFolder() == "" {
		folders := strings.Join(pluginFolders(), " or ")
		lacks = append(lacks, "the network plugin ptp in "+folders+" (Debian: containernetworking-plugins)")
	}
	lacks = append(lacks, missingInKernel()...)
	if len(lacks) > 0 {
		slices.Sort(lacks)
		return nil, fmt.Errorf("this machine lacks\n  %s", strings.Join(lacks, "\n  "))
	}
	return programs, nil
}

// missingInKernel names the features of the kernel that a cluster needs and that are missing.
func missingInKernel() []string {
	var lacks []string
	systems, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return []string{err.Error()}
	}
	for _, name := range []string{"overlay", "bpf", "tmpfs"} {
		if !strings.Contains(string(systems), "\t"+name+"\n") {
			lacks = append(lacks, "the file system "+name+" (modprobe "+name+")")
		}
	}
	if available() < 3<<30 {
		lacks = append(lacks, "3 GiB of free memory")
	}
	return lacks
}

// available returns MemAvailable, in bytes.
func available() (bytes uint64) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Sscanf(line, "MemAvailable: %d kB", &bytes); err == nil {
			return bytes << 10
		}
	}
	return 0
}

func folder(variable, otherwise string) string {
	if dir := os.Getenv(variable); dir != "" {
		return dir
	}
	return filepath.Join(".cache", otherwise)
}

// absolute returns the path of a file of the project. The program runs in the folder of the project, tests run in the
// folder of their package.
func absolute(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	dir, err := os.Getwd()
	for err == nil && dir != "/" {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); !errors.Is(err, os.ErrNotExist) {
			break
		}
		dir = filepath.Dir(dir)
	}
	return filepath.Join(dir, path)
}

func pluginFolders() []string { return []string{"/usr/lib/cni", "/opt/cni/bin"} }

// pluginFolder returns the folder with the plugins of the CNI project; "" if there is none.
func pluginFolder() string {
	for _, dir := range pluginFolders() {
		if _, err := os.Stat(filepath.Join(dir, "ptp")); err == nil {
			return dir
		}
	}
	return ""
}
