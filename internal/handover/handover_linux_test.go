package handover

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// childVariable makes this test program the process that re-executes itself.
const childVariable = "SLUICE_TEST_HANDOVER"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) == "" {
		os.Exit(m.Run())
	}
	if err := child(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// child passes a pipe to its second run, which reads the data that the first run wrote.
func child() error {
	h, err := Receive()
	if err != nil {
		return err
	}
	if h == nil {
		return first()
	}
	var text string
	if err := h.Get("text", &text); err != nil {
		return err
	}
	f := h.Take("pipe")
	if f == nil || h.Take("pipe") != nil || h.Take("nothing") != nil {
		return errors.New("the second run did not receive exactly the pipe")
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	env, err := exec.Command("env").Output() // the environment that a child inherits
	if err != nil || bytes.Contains(env, []byte(variable)) {
		return fmt.Errorf("a child inherits %s, %w", env, err)
	}
	fds, err := os.ReadDir("/proc/self/fd")
	for _, fd := range fds {
		if to, _ := os.Readlink("/proc/self/fd/" + fd.Name()); strings.HasPrefix(to, leakedFile) {
			return fmt.Errorf("descriptor %s is open in the new run: %s", fd.Name(), to)
		}
	}
	fmt.Println(os.Getpid(), len(text), string(data), strings.Join(os.Args[1:], " "))
	return err
}

// leakedFile is open in the first run, and must not be open in the second.
const leakedFile = "/proc/version"

func first() error {
	leaked, err := os.Open(leakedFile)
	if err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	fmt.Fprint(w, "written before")
	if err := w.Close(); err != nil {
		return err
	}
	h := &Handover{Files: map[string]*os.File{}}
	if err := h.Put("text", strings.Repeat("x", 1<<20)); err != nil {
		return err
	}
	h.Last = func(h *Handover) error {
		h.Files["pipe"] = r
		return nil
	}
	if err := errors.Join(Possible(), h.Finish()); err != nil {
		return err
	}
	fmt.Println(os.Getpid(), leaked.Name())
	return h.Exec(os.Args)
}

// The new run is the same process with the same arguments. It receives files, and values of
// any size, and no other descriptor.
func TestExec(t *testing.T) {
	cmd := exec.Command("/proc/self/exe", "one", "two words")
	cmd.Env = append(os.Environ(), childVariable+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	if want := fmt.Sprintf("%d %s\n%d 1048576 written before one two words\n", pid, leakedFile, pid); string(out) != want {
		t.Errorf("got\n%s\nwant\n%s", out, want)
	}
}

// The variable may be set by the parent of the process: an invalid value is an error, and a
// listing for another process is ignored.
func TestReceiveWithAForeignVariable(t *testing.T) {
	t.Setenv(variable, "no number")
	if _, err := Receive(); err == nil {
		t.Error("no error for an invalid value")
	}
	other, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(other, `{"pid": 1, "files": {"lock": 0}}`)
	defer func() { _ = other.Close() }()
	fd, err := syscall.Dup(int(other.Fd())) // Receive closes it
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(variable, strconv.Itoa(fd))
	if h, err := Receive(); h != nil || err != nil {
		t.Errorf("%+v, %v, want nothing", h, err)
	}
	if _, set := os.LookupEnv(variable); set {
		t.Error("children inherit the variable")
	}
}

// A nil Handover is empty.
func TestNil(t *testing.T) {
	var h *Handover
	out := "as it was"
	if err := h.Get("text", &out); err != nil || out != "as it was" || h.Take("file") != nil {
		t.Errorf("%q, %v", out, err)
	}
}

// What nobody takes is closed.
func TestClose(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	h := &Handover{Files: map[string]*os.File{"pipe": r}}
	failed := errors.New("failed")
	h.Last = func(*Handover) error { return failed }
	if err := h.Finish(); !errors.Is(err, failed) {
		t.Errorf("Finish returns %v", err)
	}
	if err := h.Finish(); err != nil {
		t.Errorf("the second Finish returns %v", err)
	}
	h.Close()
	if _, err := w.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("write to a pipe whose other end should be closed: %v", err)
	}
	_ = w.Close()
}
