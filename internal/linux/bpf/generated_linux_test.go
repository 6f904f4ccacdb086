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

// The compiled programs match the sources. If this machine has the same compiler, the test compiles them again.
func TestGenerated(t *testing.T) {
	b, err := os.ReadFile("sock.sum")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	files := []string{"programs/sock.c", "sock_bpfel.o"}
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
	if testing.Short() {
		return // the files fit together; make check and make test compile them again
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
	got, err := os.ReadFile(filepath.Join(out, "sock_bpfel.o"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, sockObject) {
		t.Error("sock_bpfel.o is another one when it is compiled again")
	}
}

// mostInstructions returns how many instructions the verifier may process, by program. The kernel rejects a program
// after a million; one that comes near may not load on another version. Raise a limit after a change that needs more.
func mostInstructions() map[string]uint32 {
	const large, small, tiny = 50_000, 2_000, 500
	return map[string]uint32{
		"sluice_connect4": large, "sluice_connect6": large, "sluice_sendmsg4": large,
		"sluice_sendmsg6": large,
		"sluice_recvmsg4": small, "sluice_recvmsg6": small, "sluice_getpeer4": small,
		"sluice_getpeer6": small,
		"sluice_release":  tiny,
		sockops:           tiny,
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

// The verifier processes no more instructions than mostInstructions allows. The summary of a test run prints the
// numbers.
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
			t.Errorf("%s: the verifier processes %d instructions, want 1 to %d: reduce loops and branches, "+
				"or raise the limit in mostInstructions", name, looked, most)
		}
	}
}

// BPF_PROG_TEST_RUN supports none of these program types (Linux 6.18), so the other tests run the programs by
// sockets. If this test fails, the kernel supports one: give the programs unit tests then.
func TestProgramsCannotRunAlone(t *testing.T) {
	programs := loaded(t)
	run := &ebpf.RunOptions{Data: make([]byte, 64)}
	filter, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SocketFilter, Instructions: asm.Instructions{asm.LoadImm(asm.R0, 7, asm.DWord), asm.Return()},
		License: "MIT",
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
