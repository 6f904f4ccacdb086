//go:build linux

package deploy

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/test/deploy/image"
	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
	"github.com/sluice-proxy/sluice/test/machine"
)

// capabilities are those that the manifests may name.
var capabilities = map[corev1.Capability]int{
	"NET_ADMIN": unix.CAP_NET_ADMIN, "NET_RAW": unix.CAP_NET_RAW, "SYS_ADMIN": unix.CAP_SYS_ADMIN,
	"SYS_RESOURCE": unix.CAP_SYS_RESOURCE, "DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "BPF": unix.CAP_BPF,
	"SYS_PTRACE": unix.CAP_SYS_PTRACE,
}

// These return the folder with the files of an image, which the first call writes. It is in /run, which is removed
// with this process.
var (
	plainImage    = sync.OnceValues(func() (string, error) { return writeImage() })
	iptablesImage = sync.OnceValues(func() (string, error) {
		packages, err := image.Packages(context.Background())
		if err != nil {
			return "", err
		}
		return writeImage("-packages", packages)
	})
)

func writeImage(flags ...string) (string, error) {
	work, err := os.MkdirTemp("/run", "image-")
	if err != nil {
		return "", err
	}
	program, err := harness.Program()
	if err != nil {
		return "", err
	}
	return image.Files(context.Background(), work, program, flags...)
}

// imageFor creates the file system of a container, with the files of the image of a mode and the mount points that a
// runtime makes.
func imageFor(t testing.TB, mode string) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "root")
	for _, dir := range []string{
		"proc", "sys", "host/sys/fs/cgroup", "dev", "run/sluice", "etc/sluice",
		"var/run/secrets/kubernetes.io/serviceaccount",
	} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"dev/null", lockFile} { // mount points
		if err := os.WriteFile(filepath.Join(root, file), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write := plainImage
	if mode == "iptables" || mode == "userspace" {
		write = iptablesImage
	}
	files, err := write()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", "-a", files+"/.", root).CombinedOutput(); err != nil {
		t.Fatalf("copy the image: %v\n%s", err, out)
	}
	return root
}

func daemonSetFor(t *testing.T, mode string) *appsv1.DaemonSet {
	t.Helper()
	return readDaemonSet(t, []byte(sources(template(t, "--set=config.mode="+mode))["daemonset.yaml"]))
}

// daemonSet returns the DaemonSet of deploy/kubernetes/base.
func daemonSet(t testing.TB) *appsv1.DaemonSet {
	t.Helper()
	text, err := os.ReadFile(projectPath("deploy/kubernetes/base/daemonset.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return readDaemonSet(t, text)
}

func readDaemonSet(t testing.TB, text []byte) *appsv1.DaemonSet {
	t.Helper()
	var ds appsv1.DaemonSet
	if err := yaml.UnmarshalStrict(text, &ds); err != nil {
		t.Fatal(err)
	}
	return &ds
}

// kubelet turns pods into processes, for the fields that pods of Sluice use.
type kubelet struct {
	root        string                       // of the image
	node        *lab.Host                    // where the pod runs, with hostNetwork
	maps        map[string]map[string]string // ConfigMaps, by name
	dir         string                       // folder for volumes
	extraMounts map[string]string            // further mounts
	hostFolders map[string]string            // the mounts in place of folders of the host
}

// confinement returns the confinement of a container. Unset fields of the security context have
// the defaults of the API.
func (k kubelet) confinement(t *testing.T, pod *corev1.PodSpec, c *corev1.Container) confinement {
	t.Helper()
	if !pod.HostNetwork || pod.PriorityClassName != "system-node-critical" {
		t.Fatal("the pod lacks hostNetwork or the priority class system-node-critical")
	}
	out := confinement{
		Root: k.root, Argv: k.expand(c.Command, c.Env), Env: k.env(t, c.Env),
		Mounts: map[string]string{}, Writable: map[string]string{},
		OOMScoreAdj: -997, // set by kubelet for node-critical pods
		User:        int(*pod.SecurityContext.RunAsUser),
		Privileged:  c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged,
		GainNew:     c.SecurityContext.AllowPrivilegeEscalation == nil || *c.SecurityContext.AllowPrivilegeEscalation,
		HostPID:     pod.HostPID,
	}
	if !*c.SecurityContext.ReadOnlyRootFilesystem {
		t.Fatal("the root is not read-only, which these tests do not support")
	}
	if caps := c.SecurityContext.Capabilities; caps != nil {
		if len(caps.Drop) != 1 || caps.Drop[0] != "ALL" {
			t.Fatalf("capabilities are dropped individually, want ALL: %v", caps.Drop)
		}
		for _, name := range caps.Add {
			number, known := capabilities[name]
			if !known {
				t.Fatalf("capability %s is unknown", name)
			}
			out.Capabilities = append(out.Capabilities, number)
		}
	}
	if pod.SecurityContext.SeccompProfile.Type == corev1.SeccompProfileTypeRuntimeDefault {
		out.Filter = runtimeDefault(t, out.Capabilities)
	}
	for _, m := range c.VolumeMounts {
		if isLock(pod, m) {
			out.Writable[m.MountPath] = k.lock(t)
			continue
		}
		if isEmptyDir(pod, m) {
			out.Writable[m.MountPath] = cmp.Or(k.hostFolders[m.MountPath], k.emptyDir(t, m.Name))
			continue
		}
		if folder := hostFolder(pod, m); folder != "" {
			out.Writable[m.MountPath] = k.hostFolders[folder]
			continue
		}
		out.Mounts[m.MountPath] = k.volume(t, pod, m.Name)
	}
	maps.Copy(out.Mounts, k.extraMounts)
	return out
}

// expand replaces $(NAME) like kubelet.
func (k kubelet) expand(command []string, env []corev1.EnvVar) []string {
	var out []string
	for _, word := range command {
		for _, e := range env {
			if e.ValueFrom != nil && e.ValueFrom.FieldRef != nil && e.ValueFrom.FieldRef.FieldPath == "spec.nodeName" {
				word = strings.ReplaceAll(word, "$("+e.Name+")", k.node.Name())
			}
		}
		out = append(out, word)
	}
	return out
}

func (k kubelet) env(t *testing.T, env []corev1.EnvVar) []string {
	t.Helper()
	out := []string{"PATH=/usr/local/bin"}
	for _, e := range env {
		value := e.Value
		if e.ValueFrom != nil && e.ValueFrom.FieldRef != nil {
			value = k.node.Name()
		}
		if e.ValueFrom != nil && e.ValueFrom.ConfigMapKeyRef != nil {
			ref := e.ValueFrom.ConfigMapKeyRef
			var there bool
			if value, there = k.maps[ref.Name][ref.Key]; !there {
				t.Fatalf("the pod needs the missing key %s of ConfigMap %s", ref.Key, ref.Name)
			}
		}
		out = append(out, e.Name+"="+value)
	}
	return out
}

// lockFile is the xtables lock, which every program locks that changes legacy tables.
const lockFile = "/run/xtables.lock"

// isLock reports whether a mount is the xtables lock of the host.
func isLock(pod *corev1.PodSpec, m corev1.VolumeMount) bool {
	for _, v := range pod.Volumes {
		if v.Name == m.Name && v.HostPath != nil {
			return v.HostPath.Path == lockFile && *v.HostPath.Type == corev1.HostPathFileOrCreate &&
				m.MountPath == lockFile && !m.ReadOnly
		}
	}
	return false
}

// isEmptyDir reports whether a mount is a folder of the pod.
func isEmptyDir(pod *corev1.PodSpec, m corev1.VolumeMount) bool {
	return slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name && v.EmptyDir != nil })
}

// emptyDir creates the folder of a volume with the mode that kubelet gives it.
func (k kubelet) emptyDir(t *testing.T, volume string) string {
	t.Helper()
	dir := filepath.Join(k.dir, volume)
	must(t, os.MkdirAll(dir, 0o777))
	must(t, os.Chmod(dir, 0o777)) // whatever the umask is
	return dir
}

// socketFolder has the sockets of commands. On a host it is the runtime directory of a unit, or a hostPath for people
// who run commands there.
const socketFolder = "/run/sluice"

// hostSocketFolder creates socketFolder on the hosts of the lab, which share /run.
func hostSocketFolder(t *testing.T) map[string]string {
	t.Helper()
	must(t, os.MkdirAll(socketFolder, 0o700))
	return map[string]string{socketFolder: socketFolder}
}

// hostFolder returns the folder of the host that a mount is; "" if it is none.
func hostFolder(pod *corev1.PodSpec, m corev1.VolumeMount) string {
	for _, v := range pod.Volumes {
		if v.Name == m.Name && v.HostPath != nil && *v.HostPath.Type == corev1.HostPathDirectory && !m.ReadOnly {
			return v.HostPath.Path
		}
	}
	return ""
}

// lock creates the lock file of a host at the path that the conformance tests use, because hosts of the lab share /run.
func (k kubelet) lock(t *testing.T) string {
	t.Helper()
	path := fmt.Sprintf("/run/xtables-%d.lock", k.node.NetNSFD())
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o644)
	must(t, err)
	must(t, file.Close())
	return path
}

// volume writes a ConfigMap like kubelet, behind a link that is replaced atomically.
func (k kubelet) volume(t *testing.T, pod *corev1.PodSpec, name string) string {
	t.Helper()
	for _, v := range pod.Volumes {
		if v.Name != name || v.ConfigMap == nil {
			continue
		}
		dir := filepath.Join(k.dir, name)
		if err := os.MkdirAll(filepath.Join(dir, "..1"), 0o755); err != nil {
			t.Fatal(err)
		}
		_ = os.Symlink("..1", filepath.Join(dir, "..data")) // fails if the link exists already
		for key, text := range k.maps[v.ConfigMap.Name] {
			if err := os.WriteFile(filepath.Join(dir, "..1", key), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			_ = os.Symlink("..data/"+key, filepath.Join(dir, key)) // likewise
		}
		return dir
	}
	t.Fatalf("volume %q is not a ConfigMap: the pod must not need other volumes", name)
	return ""
}

// process is a confined program.
type process struct {
	t    testing.TB
	cmd  *exec.Cmd
	wait func() error
	log  *harness.Log
}

// start runs a program on a host.
func (c confinement) start(t testing.TB, host *lab.Host) *process {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: exec.Command("/proc/self/exe", confinedArg, string(text)), log: &harness.Log{}}
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWIPC}
	if !c.HostPID {
		p.cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWPID
	}
	if p.wait, err = host.Start(p.cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log of %v:\n%s", c.Argv, p.log)
		}
	})
	return p
}

// stopTimeout is how long a program may take to stop after SIGTERM, on a fast machine.
const stopTimeout = 5 * time.Second

// stop sends SIGTERM and waits. Like kubelet it kills the program after stopTimeout: the first
// process of a PID namespace ignores signals until it installs a handler.
func (p *process) stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // an error means that it has already ended
	kill := time.AfterFunc(machine.Scale(stopTimeout), func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	return p.wait()
}

// waitForLog waits until the program has logged a text.
func (p *process) waitForLog(text string) {
	p.t.Helper()
	eventually(p.t, func() error {
		if !strings.Contains(p.log.String(), text) {
			return fmt.Errorf("the log lacks %q:\n%s", text, p.log)
		}
		return nil
	})
}

// timeout bounds the wait for an expected event.
const timeout = 30 * time.Second

// eventually calls try until it returns no error.
func eventually(t testing.TB, try func() error) {
	t.Helper()
	harness.Eventually(t, timeout, try)
}
