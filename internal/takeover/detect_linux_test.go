package takeover

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/handover/listen"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// served names where a copy of this test program answers as kube-proxy, instead
// of testing: addresses separated by commas.
const served = "SLUICE_TEST_KUBE_PROXY"

// looking has a copy of this test program look for a kube-proxy.
const looking = "SLUICE_TEST_LOOK"

// act is a process that may look like kube-proxy.
func act(addresses string) {
	for at := range strings.SplitSeq(addresses, ",") {
		if at == "" {
			continue
		}
		l, err := net.Listen("tcp", at)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		go func() {
			_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, speaking("iptables")[r.URL.Path])
			}))
		}()
	}
	fmt.Println("ready")
	time.Sleep(time.Hour) // select {} would be a deadlock without a server, which ends the program
}

// program copies this test program to a file of kube-proxy's name, which any user may run.
func program(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, text, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// actor is a process that may look like kube-proxy.
type actor struct {
	path, addresses string
	attr            *syscall.SysProcAttr
}

// start runs it in a network namespace until the test ends.
func (a actor) start(t *testing.T, netns int) int {
	t.Helper()
	cmd := exec.Command(a.path)
	cmd.Env, cmd.SysProcAttr = append(os.Environ(), served+"=,"+a.addresses), a.attr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	kerneltest.Do(t, netns, cmd.Start)
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("it prints %q, %v", line, err)
	}
	return cmd.Process.Pid
}

// Real processes, of root and of others, called kube-proxy or not, that listen and answer as kube-proxy does or not.
func TestRealProcesses(t *testing.T) {
	if b, err := os.ReadFile("/proc/self/uid_map"); err != nil || strings.HasSuffix(strings.TrimSpace(string(b)), " 1") {
		t.Skip("the user namespace of this process has one user only")
	}
	const stranger = 65534
	nobody := func() *syscall.SysProcAttr {
		return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger, Gid: stranger}}
	}
	contained := func() *syscall.SysProcAttr { // root, and all capabilities, of a user namespace of its own
		return &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{HostID: stranger, Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: stranger, Size: 1}},
			Credential:  &syscall.Credential{NoSetGroups: true},
		}
	}
	capable := func() *syscall.SysProcAttr {
		attr := nobody()
		attr.AmbientCaps = []uintptr{unix.CAP_NET_ADMIN}
		return attr
	}
	path := program(t)
	other := filepath.Join(filepath.Dir(path), "other")
	if err := os.Link(path, other); err != nil {
		t.Fatal(err)
	}
	const both = "127.0.0.1:10249,0.0.0.0:10256"
	for _, tt := range []struct {
		name string
		actor
		want *KubeProxy // without PID
	}{
		{
			"kube-proxy",
			actor{path, both, nil},
			&KubeProxy{Program: path, Mode: "iptables", Evidence: "it listens on port 10249"},
		},
		{
			"kube-proxy in another program",
			actor{other, both, nil},
			&KubeProxy{Program: other, Mode: "iptables", Evidence: "it answers at 127.0.0.1:10249"},
		},
		{"its name alone", actor{path, "", nil}, nil},
		{
			"a user with NET_ADMIN",
			actor{path, both, capable()},
			&KubeProxy{Program: path, Mode: "iptables", Evidence: "it listens on port 10249"},
		},
		{"a tenant of its name", actor{path, "", nobody()}, nil},
		{"a tenant of its name that answers", actor{path, both, nobody()}, nil},
		{"a tenant that answers", actor{other, both, nobody()}, nil},
		{"root of a user namespace, of its name", actor{path, both, contained()}, nil},
		{"root of a user namespace", actor{other, both, contained()}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			netns := kerneltest.Namespace(t)
			pid := tt.start(t, netns)
			got, err := newDetector(Options{NetNS: netns, Dial: listen.Opener{NetNS: netns}.Dial}).detect(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got == nil || tt.want == nil {
				if got != tt.want {
					t.Errorf("noticed %+v, want %+v", got, tt.want)
				}
				return
			}
			want := *tt.want
			want.PID = pid
			if *got != want {
				t.Errorf("noticed %+v, want %+v", *got, want)
			}
		})
	}
}

// Sluice under systemd has CAP_NET_ADMIN and no more: it may not look into the processes of root. It distinguishes a
// kube-proxy from others all the same.
func TestWithNetAdminAlone(t *testing.T) {
	if b, err := os.ReadFile("/proc/self/uid_map"); err != nil || strings.HasSuffix(strings.TrimSpace(string(b)), " 1") {
		t.Skip("the user namespace of this process has one user only")
	}
	const sluice, tenant = 65534, 65533
	path := program(t)
	const both = "127.0.0.1:10249,0.0.0.0:10256"
	listening := actor{path: path, addresses: both}
	contained := actor{path, both, &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{HostID: tenant, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: tenant, Size: 1}},
		Credential:  &syscall.Credential{NoSetGroups: true},
	}}
	for _, tt := range []struct {
		name string
		actor
		want string
	}{
		{"kube-proxy", listening, "kube-proxy in mode iptables <nil>"},
		{"root of a user namespace", contained, "<nil> <nil>"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			netns := kerneltest.Namespace(t)
			tt.start(t, netns)
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), looking+"=1")
			cmd.SysProcAttr = &syscall.SysProcAttr{
				Credential: &syscall.Credential{Uid: sluice, Gid: sluice}, AmbientCaps: []uintptr{unix.CAP_NET_ADMIN},
			}
			var out []byte
			kerneltest.Do(t, netns, func() (err error) {
				out, err = cmd.Output()
				return err
			})
			if got := strings.TrimSpace(string(out)); got != tt.want {
				t.Errorf("noticed %s, want %s", got, tt.want)
			}
		})
	}
}
