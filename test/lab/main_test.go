//go:build linux

package lab

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// holdVar makes TestKilledLabLeavesNothing run as the process that is killed.
const holdVar = "SLUICE_LAB_HOLD"

// holdLab builds a lab and waits to be killed.
func holdLab(t *testing.T) {
	s := newTestLab(t, Options{})
	s.near.Serve(TCP, 80)
	sleep := exec.Command("sleep", "600")
	if _, err := s.NodeA.Start(sleep); err != nil {
		t.Fatal(err)
	}
	held := []string{"held", strconv.Itoa(os.Getpid()), strconv.Itoa(sleep.Process.Pid)}
	for _, h := range s.hosts() {
		name, err := os.Readlink(h.NetNSPath())
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, name)
	}
	fmt.Println(strings.Join(held, " "))
	time.Sleep(time.Minute)
}

func TestKilledLabLeavesNothing(t *testing.T) {
	if os.Getenv(holdVar) != "" {
		holdLab(t)
		return
	}
	before := interfaces(t)
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestKilledLabLeavesNothing$")
	cmd.Env = append(os.Environ(), holdVar+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	held := awaitHeld(t, bufio.NewScanner(out))
	if users := usersOf(t, held[2:]); len(users) == 0 {
		t.Fatal("no process uses the namespaces of the running lab: the check does not work")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // returns an error because it was killed
	var left []string
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		left = append(alive(held[:2]), usersOf(t, held[2:])...)
		if len(left) == 0 {
			break
		}
	}
	if len(left) != 0 {
		t.Errorf("remaining after the kill: %s", left)
	}
	if after := interfaces(t); after != before {
		t.Errorf("interfaces before:\n%safter:\n%s", before, after)
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || bytes.Contains(mounts, []byte("nsfs")) {
		t.Errorf("namespaces held by mounts: %v\n%s", err, mounts)
	}
}

func awaitHeld(t *testing.T, lines *bufio.Scanner) []string {
	t.Helper()
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "held "); ok {
			return strings.Fields(rest)
		}
		t.Log(lines.Text())
	}
	t.Fatalf("the lab was not built: %v", lines.Err())
	return nil
}

// interfaces lists the interfaces of the outer namespace.
func interfaces(t *testing.T) string {
	t.Helper()
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, i := range all {
		fmt.Fprintln(&b, i.Index, i.Name)
	}
	return b.String()
}

// alive returns the processes that are still running.
func alive(pids []string) []string {
	var out []string
	for _, pid := range pids {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err == nil && !bytes.Contains(stat, []byte(") Z ")) {
			out = append(out, "process "+pid)
		}
	}
	return out
}

// usersOf lists threads in, and descriptors of, network namespaces.
func usersOf(t *testing.T, namespaces []string) []string {
	t.Helper()
	var out []string
	for _, pattern := range []string{"/proc/[0-9]*/task/[0-9]*/ns/net", "/proc/[0-9]*/fd/*"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			target, err := os.Readlink(file)
			if err != nil {
				continue // has ended, or is not readable
			}
			for _, n := range namespaces {
				if n == target {
					out = append(out, file+" is "+n)
				}
			}
		}
	}
	return out
}

func TestUnprivileged(t *testing.T) {
	if userNamespace(t) {
		t.Skip("this whole run is unprivileged already")
	}
	const nobody = 65534
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestAllHostsReachEachOther$", "-test.v")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig:  unix.SIGKILL,
		Credential: &syscall.Credential{Uid: nobody, Gid: nobody},
	}
	out, err := cmd.CombinedOutput()
	if bytes.Contains(out, []byte("allow unprivileged user namespaces")) {
		t.Skipf("the kernel refuses: %s", out)
	}
	if err != nil || !bytes.Contains(out, []byte("--- PASS: TestAllHostsReachEachOther")) {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
}

// userNamespace reports whether this user namespace has only one user.
func userNamespace(t *testing.T) bool {
	t.Helper()
	m, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(m))
	return len(fields) != 3 || fields[2] != "4294967295"
}

func TestExitCodeIsThatOfTheTests(t *testing.T) {
	for flag, want := range map[string]int{"-test.run=^$": 0, "-test.nonsense": 2} {
		cmd := exec.Command("/proc/self/exe", flag)
		_ = cmd.Run() // the exit code is checked below
		if got := cmd.ProcessState.ExitCode(); got != want {
			t.Errorf("%s: exit code %d, want %d", flag, got, want)
		}
	}
}
