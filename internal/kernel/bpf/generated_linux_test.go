package bpf

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// The compiled programs are those of the sources. With the same compiler, they are compiled again.
func TestGenerated(t *testing.T) {
	b, err := os.ReadFile("sock.sum")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	generated := []string{"sock_bpfel.go", "sock_bpfel.o", "testdata/other.o"}
	files := append([]string{"programs/sock.c"}, generated...)
	if len(lines) != len(files)+1 {
		t.Fatalf("sock.sum has %d lines, want one for each of %v and the compiler", len(lines), files)
	}
	compiler := lines[len(files)]
	for i, file := range files {
		want, is := strings.CutSuffix(lines[i], "  "+file)
		if !is {
			t.Fatalf("line %d of sock.sum is %q, want that of %s", i+1, lines[i], file)
		}
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != want {
			t.Errorf("%s has changed: run hack/bpf.sh", file)
		}
	}
	version, err := exec.Command("clang-14", "--version").Output()
	if err != nil || !strings.HasPrefix(string(version), compiler+"\n") {
		t.Logf("not compiled again: that needs %s", compiler)
		return
	}
	out := t.TempDir()
	if text, err := exec.Command("../../../hack/bpf.sh", out).CombinedOutput(); err != nil {
		t.Fatalf("compile: %v: %s", err, text)
	}
	for _, name := range generated {
		got, err := os.ReadFile(filepath.Join(out, name))
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is another one when it is compiled again", name)
		}
	}
}

// mostInstructions returns how many instructions the verifier may look at, by program. The kernel gives up after a million; a
// program that comes near does not load on another version. Raise a limit after a change that needs more.
func mostInstructions() map[string]uint32 {
	const large, small, tiny = 50_000, 1_000, 500
	return map[string]uint32{
		sockProgSluiceConnect4: large, sockProgSluiceConnect6: large, sockProgSluiceSendmsg4: large, sockProgSluiceSendmsg6: large,
		sockProgSluiceRecvmsg4: small, sockProgSluiceRecvmsg6: small, sockProgSluiceGetpeer4: small, sockProgSluiceGetpeer6: small,
		sockProgSluiceLearn: small, sockProgSluiceRelease: tiny, sockProgSluiceBind4: tiny, sockProgSluiceBind6: tiny,
	}
}

// loaded returns the programs, as they are loaded for a node.
func loaded(t *testing.T) *ebpf.Collection {
	t.Helper()
	n := newNode(t)
	n.write()
	programs, err := n.conn.load()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(programs.Close)
	return programs
}

// The verifier accepts the programs without looking at too much. The summary of a test run prints at how much it looked.
func TestVerifier(t *testing.T) {
	programs := loaded(t)
	for name, p := range programs.Programs {
		info, err := p.Info()
		if err != nil {
			t.Fatal(err)
		}
		looked, _ := info.VerifiedInstructions()
		t.Attr("instructions-verified/"+name, strconv.FormatUint(uint64(looked), 10))
		if most := mostInstructions()[name]; looked == 0 || looked > most {
			t.Errorf("%s: the verifier looks at %d instructions, want 1 to %d: make loops and branches fewer, or raise the limit in mostInstructions", name, looked, most)
		}
	}
}

// The kernel runs none of these types of programs alone (BPF_PROG_TEST_RUN, Linux 6.18), so sockets of the other tests run them. When this
// fails a kernel can do it, and programs should have tests of their own.
func TestProgramsCannotRunAlone(t *testing.T) {
	programs := loaded(t)
	run := &ebpf.RunOptions{Data: make([]byte, 64)}
	filter, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SocketFilter, Instructions: asm.Instructions{asm.LoadImm(asm.R0, 7, asm.DWord), asm.Return()}, License: "MIT",
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = filter.Close() }() // it was only run
	if result, err := filter.Run(run); err != nil || result != 7 {
		t.Errorf("a socket filter returns %d, %v, want 7", result, err)
	}
	for name, p := range programs.Programs {
		if result, err := p.Run(run); !errors.Is(err, ebpf.ErrNotSupported) {
			t.Errorf("%s, of type %s, returns %d, %v, want %v", name, p.Type(), result, err, ebpf.ErrNotSupported)
		}
	}
}
