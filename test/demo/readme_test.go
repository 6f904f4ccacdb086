//go:build linux

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cli"
)

// The README names existing flags, and every example.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var help bytes.Buffer
	if code := cli.Main(t.Context(), []string{"sluice", "--help"}, cli.Env{Stdout: &help, Stderr: &help}); code != 0 {
		t.Fatalf("--help: exit code %d", code)
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "kubectl") || strings.Contains(line, "'{") {
			continue // not Sluice's flags
		}
		for _, flag := range regexp.MustCompile(`--[a-z][a-z-]+`).FindAllString(line, -1) {
			if !regexp.MustCompile(flag + `\b`).MatchString(help.String()) {
				t.Errorf("there is no flag %s: %s", flag, line)
			}
		}
	}
	files, err := filepath.Glob(filepath.Join(examples, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, file := range files {
		if name := "](examples/" + filepath.Base(file) + ")"; !strings.Contains(string(text), name) {
			t.Errorf("no link to %s", filepath.Base(file))
		}
	}
}

// transcript returns the lines of the demo in the README.
func transcript(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "    make demo\n")
	_, rest, _ = strings.Cut(rest, "\n```text\n")
	block, _, _ := strings.Cut(rest, "\n```")
	lines := strings.Split(block, "\n")
	if len(lines) < 10 {
		t.Fatalf("the README has no lines of the demo, but %q", lines)
	}
	return lines
}

// shape replaces what differs between two runs: numbers, the pods that answered,
// and blanks.
func shape(text string) string {
	text = regexp.MustCompile(`[\d.,]*\d`).ReplaceAllString(text, "0")
	text = regexp.MustCompile(`[█▏▎▍▌▋▊▉]+`).ReplaceAllString(text, "")
	return regexp.MustCompile(`[ \t]+`).ReplaceAllString(text, " ")
}
