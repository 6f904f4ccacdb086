package process

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
)

// run starts a copy of sleep with these attributes and files, and kills it when the test
// ends.
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
	netns := kerneltest.Namespace(t)
	kerneltest.Do(t, netns, cmd.Start)
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	})
	list, err := New(Options{NetNS: netns}).Named(t.Context(), "their-proxy")
	if err != nil || len(list) != 1 || list[0].PID != cmd.Process.Pid || list[0].Program != path {
		t.Fatalf("processes %+v, %v, want pid %d of %s", list, err, cmd.Process.Pid, path)
	}
	return list[0]
}

// Neither a process of another user nor one with capabilities only in its own user
// namespace can change the rules of this network namespace.
func TestWhoHasNetAdmin(t *testing.T) {
	if b, err := os.ReadFile("/proc/self/uid_map"); err != nil || len(strings.Fields(string(b))) == 3 && strings.Fields(string(b))[2] == "1" {
		t.Skip("the user namespace of this process has one user only")
	}
	const nobody = 65534
	for name, tt := range map[string]struct {
		attr *syscall.SysProcAttr
		want bool
	}{
		"root":                  {nil, true},
		"nobody":                {&syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}, false},
		"nobody with NET_ADMIN": {&syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}, AmbientCaps: []uintptr{unix.CAP_NET_ADMIN}}, true},
		"root of a namespace": {&syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{HostID: nobody, Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: nobody, Size: 1}},
			Credential: &syscall.Credential{NoSetGroups: true},
		}, false},
	} {
		if p := run(t, tt.attr); p.Admin != tt.want {
			t.Errorf("%s: Admin %v, want %v", name, p.Admin, tt.want)
		}
	}
}

func TestAgeAndSockets(t *testing.T) {
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
	if !slices.Contains(p.Sockets, stat.Ino) || p.Age < 0 || p.Age > time.Hour {
		t.Errorf("%+v, want socket %d and a young process", p, stat.Ino)
	}
	found, err := New(Options{}).WithSocket(stat.Ino)
	if err != nil || found != min(p.PID, os.Getpid()) {
		t.Errorf("socket %d is of process %d, %v, want %d", stat.Ino, found, err, min(p.PID, os.Getpid()))
	}
	if found, err := New(Options{}).WithSocket(1 << 60); found != 0 || err != nil {
		t.Errorf("no socket is of process %d, %v", found, err)
	}
	if own := New(Options{}).Describe(1); own.Age == 0 {
		t.Errorf("process 1: %+v, want an age", own)
	}
}

// Properties that cannot be read have their default values.
func TestAProcessWithUnreadableFilesHasUnknownProperties(t *testing.T) {
	root := folder(t, map[string][4]string{"7": {"p", "/usr/bin/p", "net:[1]", ""}})
	want := Process{PID: 7, Program: "/usr/bin/p", Admin: true}
	if got := New(Options{Root: root}).Describe(7); got.PID != want.PID || got.Program != want.Program || !got.Admin || got.Age != 0 || got.Sockets != nil {
		t.Errorf("%+v, want %+v", got, want)
	}
}
