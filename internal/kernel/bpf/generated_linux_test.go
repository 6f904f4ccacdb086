package bpf

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
)

// The compiled programs are those of the sources. With the same compiler, they are compiled again.
func TestGenerated(t *testing.T) {
	b, err := os.ReadFile("sock.sum")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if len(lines) != 3 {
		t.Fatalf("sock.sum has %d lines, want 3", len(lines))
	}
	for _, line := range lines[:2] {
		want, file, _ := strings.Cut(line, "  ")
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != want {
			t.Errorf("%s has changed: run hack/bpf.sh", file)
		}
	}
	version, err := exec.Command("clang-14", "--version").Output()
	if err != nil || !strings.HasPrefix(string(version), lines[2]+"\n") {
		t.Logf("not compiled again: that needs %s", lines[2])
		return
	}
	out := t.TempDir()
	if text, err := exec.Command("../../../hack/bpf.sh", out).CombinedOutput(); err != nil {
		t.Fatalf("compile: %v: %s", err, text)
	}
	for _, name := range []string{"sock_bpfel.o", "sock_bpfel.go"} {
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

// The verifier accepts the programs, and says how much it looked at.
func TestVerifier(t *testing.T) {
	n := newNode(t)
	n.write()
	programs, err := n.conn.load()
	if err != nil {
		t.Fatal(err)
	}
	defer programs.Close()
	for name, p := range programs.Programs {
		info, err := p.Info()
		if err != nil {
			t.Fatal(err)
		}
		looked, _ := info.VerifiedInstructions()
		t.Logf("%s: %d instructions verified", name, looked)
		if looked == 0 || looked > 100_000 {
			t.Errorf("%s: %d instructions verified, want some", name, looked)
		}
		if _, err := p.Run(&ebpf.RunOptions{Data: make([]byte, 64)}); err != nil { // BPF_PROG_TEST_RUN
			t.Logf("%s: cannot be run alone, so sockets of the other tests run it: %v", name, err)
		}
	}
}
