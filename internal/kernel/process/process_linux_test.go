package process

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

// start starts a program that sleeps, with a file name and a first argument, and kills it
// when the test ends.
func start(t *testing.T, netns int, file, arg string) int {
	t.Helper()
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), file)
	if err := copyFile(path, sleep); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "60")
	cmd.Args[0] = arg
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	kerneltest.Do(t, netns, cmd.Start)
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	})
	return cmd.Process.Pid
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	return out.Close()
}

func TestNamedFindsFileNamesAndFirstArgumentsInANamespace(t *testing.T) {
	here, there := kerneltest.Namespace(t), kerneltest.Namespace(t)
	byFile := start(t, here, "their-proxy", "/any/name")
	byArgument := start(t, here, "multi-call", "/usr/bin/their-proxy")
	elsewhere := start(t, there, "their-proxy", "their-proxy")
	start(t, here, "their-proxy-2", "their-proxy-2")

	for _, c := range []struct {
		netns int
		want  []int
	}{{here, []int{byFile, byArgument}}, {there, []int{elsewhere}}, {kerneltest.Namespace(t), nil}} {
		got, err := New(Options{NetNS: c.netns}).Named(t.Context(), "their-proxy")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(sorted(c.want), numbers(got)); diff != "" {
			t.Errorf("processes (-want +got):\n%s", diff)
		}
	}
}

func numbers(list []Process) []int {
	var pids []int
	for _, p := range list {
		pids = append(pids, p.PID)
	}
	return pids
}

func sorted(pids []int) []int {
	if len(pids) == 2 && pids[0] > pids[1] {
		pids[0], pids[1] = pids[1], pids[0]
	}
	return pids
}

// folder returns a folder like /proc with processes by PID: name, first argument, network
// namespace and program. An empty field cannot be read.
func folder(t *testing.T, processes map[string][4]string) string {
	t.Helper()
	root := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for pid, p := range processes {
		must(os.MkdirAll(filepath.Join(root, pid, "ns"), 0o755))
		if p[0] != "" {
			must(os.WriteFile(filepath.Join(root, pid, "comm"), []byte(p[0]+"\n"), 0o644))
			must(os.WriteFile(filepath.Join(root, pid, "cmdline"), []byte(p[1]+"\x00--flag\x00"), 0o644))
		}
		if p[2] != "" {
			must(os.Symlink(p[2], filepath.Join(root, pid, "ns", "net")))
		}
		if p[3] != "" {
			program := filepath.Join(root, p[3])
			must(os.WriteFile(program, nil, 0o755))
			must(os.Symlink(program, filepath.Join(root, pid, "exe")))
		}
	}
	return root
}

func TestAProcessDoesNotCountItself(t *testing.T) {
	root := folder(t, map[string][4]string{
		"self": {"p", "p", "net:[1]", "ours"},
		"7":    {"p", "p", "net:[1]", "ours"},   // this process, or another of this program
		"8":    {"p", "p", "net:[1]", "theirs"}, // another program
		"12":   {"p", "p", "net:[1]", ""},       // of another user: its program cannot be read
		"9":    {"p", "p", "net:[2]", "theirs"}, // in another namespace
		"10":   {"p", "p", "", "theirs"},        // exited meanwhile
		"11":   {"", "", "net:[1]", "theirs"},
		"13":   {"q", "/p", "net:[1]", "theirs"},
		"14":   {"p-2", "/p/q", "net:[1]", "theirs"},
		"tty":  {"p", "p", "net:[1]", "theirs"},
	})
	got, err := New(Options{Root: root}).Named(t.Context(), "p")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int{8, 12, 13}, numbers(got)); diff != "" {
		t.Errorf("processes (-want +got):\n%s", diff)
	}
}

func TestWithoutProcIsAnError(t *testing.T) {
	if _, err := New(Options{Root: t.TempDir()}).Named(t.Context(), "p"); err == nil {
		t.Error("no error")
	}
}

// BenchmarkNamed measures a search of the processes of this machine.
func BenchmarkNamed(b *testing.B) {
	p := New(Options{})
	for b.Loop() {
		if _, err := p.Named(b.Context(), "their-proxy"); err != nil {
			b.Fatal(err)
		}
	}
}
