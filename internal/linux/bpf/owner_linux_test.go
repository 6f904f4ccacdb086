package bpf

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/lab"
)

// asNobody runs a command of the shell as a user without rights.
func asNobody(t *testing.T, command string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", command)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
}

// All users may create folders on a bpffs that is mounted without options. One that another user has created there is
// not used, and nothing is deleted where its links lead.
func TestFolderOfAnotherUser(t *testing.T) {
	kerneltest.NeedPrograms(t)
	o := Options{Dir: filepath.Join(lab.BPFFS(t), "sluice"), Cgroup: lab.Cgroup(t), NetNS: kerneltest.Namespace(t)}
	precious := filepath.Join(t.TempDir(), "precious")
	if err := os.WriteFile(precious, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	asNobody(t, "mkdir "+o.Dir+" && ln -s "+filepath.Dir(precious)+" "+o.Dir+"/links")
	if err := Try(o); !errors.Is(err, unix.EPERM) {
		t.Errorf("the self-test returns %v, want %v", err, unix.EPERM)
	}
	conn, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // the maps go with the bpffs
	err = conn.Write(t.Context(), []Step{{Entry: Entry{Key{Table: Programs}, conn.Version()}}})
	if !errors.Is(err, unix.EPERM) {
		t.Errorf("a write returns %v, want %v", err, unix.EPERM)
	}
	if _, err := os.Stat(precious); err != nil {
		t.Fatalf("a write deletes a file elsewhere: %v", err)
	}
	if _, err := Remove(t.Context(), o); !errors.Is(err, unix.EPERM) {
		t.Errorf("the removal returns %v, want %v", err, unix.EPERM)
	}
	if _, err := os.Stat(precious); err != nil {
		t.Errorf("the removal deletes a file elsewhere: %v", err)
	}
}
