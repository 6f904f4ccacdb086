package process

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// run starts a copy of sleep with these attributes and files, and kills it when the test ends.
func run(t *testing.T, attr *syscall.SysProcAttr, files ...*os.File) Process {
	t.Helper()
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "their-proxy")
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // other users run it
		t.Fatal(err)
	}
	if err := copyFile(path, sleep); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "60")
	cmd.SysProcAttr, cmd.ExtraFiles = attr, files
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	})
	p := New().Describe(cmd.Process.Pid)
	for begun := time.Now(); p.Names[0] != "their-proxy" && time.Since(begun) < time.Minute; time.Sleep(time.Millisecond) {
		// The kernel closes files before it sets the command line (begin_new_exec).
		p = New().Describe(cmd.Process.Pid)
	}
	if p.Program != path || p.Names[0] != "their-proxy" || p.Names[1] != "their-proxy" || p.Self {
		t.Fatalf("process %+v, want that of %s", p, path)
	}
	return p
}

// Neither a process of another user nor one with capabilities only in its own user
// namespace can change the rules of this network namespace.
func TestWhoHasNetAdmin(t *testing.T) {
	if b, err := os.ReadFile("/proc/self/uid_map"); err != nil ||
		len(strings.Fields(string(b))) == 3 && strings.Fields(string(b))[2] == "1" {
		t.Skip("the user namespace of this process has one user only")
	}
	const nobody = 65534
	for name, tt := range map[string]struct {
		attr *syscall.SysProcAttr
		want bool
	}{
		"root":   {nil, true},
		"nobody": {&syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}, false},
		"nobody with NET_ADMIN": {&syscall.SysProcAttr{
			Credential:  &syscall.Credential{Uid: nobody, Gid: nobody},
			AmbientCaps: []uintptr{unix.CAP_NET_ADMIN},
		}, true},
		"root of a namespace": {&syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{HostID: nobody, Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: nobody, Size: 1}},
			Credential:  &syscall.Credential{NoSetGroups: true},
		}, false},
	} {
		if p := run(t, tt.attr); p.Admin != tt.want {
			t.Errorf("%s: Admin %v, want %v", name, p.Admin, tt.want)
		}
	}
}

func TestWithSocket(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		t.Fatal(err)
	}
	p := run(t, nil, file)
	found, err := New().WithSocket(stat.Ino)
	if err != nil || found != min(p.PID, os.Getpid()) {
		t.Errorf("socket %d is of process %d, %v, want %d", stat.Ino, found, err, min(p.PID, os.Getpid()))
	}
	if found, err := New().WithSocket(1 << 60); found != 0 || err != nil {
		t.Errorf("no socket is of process %d, %v", found, err)
	}
}

// Names come from the command line and the kernel. Properties that cannot be read have their default values.
func TestDescribe(t *testing.T) {
	root := t.TempDir()
	for path, text := range map[string]string{"7/comm": "q\n", "7/cmdline": "/usr/bin/p\x00--flag\x00", "8/x": ""} {
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, path), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p := Processes{root}
	want := []Process{
		{PID: 7, Program: "/usr/bin/p", Names: []string{"p", "q"}, Admin: true},
		{PID: 8, Names: []string{".", ""}, Admin: true},
	}
	if diff := cmp.Diff(want, []Process{p.Describe(7), p.Describe(8)}); diff != "" {
		t.Errorf("processes (-want +got):\n%s", diff)
	}
	if !New().Describe(os.Getpid()).Self {
		t.Error("this process does not run its own program")
	}
}

func TestWithoutProcIsAnError(t *testing.T) {
	none := Processes{filepath.Join(t.TempDir(), "none")}
	if _, err := none.WithSocket(1); err == nil {
		t.Error("no error")
	}
}
