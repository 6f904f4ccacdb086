//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cli"
)

// The README names existing flags, every example, and the pace of the animation.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	bounds := fmt.Sprintf("%v to %v s between two lines", shortestGap.Seconds(), longestGap.Seconds())
	if !strings.Contains(string(text), bounds) {
		t.Errorf("the caption of the animation does not say %q", bounds)
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "kubectl") || strings.Contains(line, "'{") {
			continue // not Sluice's flags
		}
		for _, flag := range regexp.MustCompile(`--[a-z][a-z-]+`).FindAllString(line, -1) {
			if !regexp.MustCompile(flag + `\b`).MatchString(help(t, line)) {
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

// help returns the help of the command that a line runs, or of Sluice.
func help(t *testing.T, line string) string {
	t.Helper()
	args := []string{"sluice", "--help"}
	if _, command, found := strings.Cut(line, " sluice "); found && !strings.HasPrefix(command, "-") {
		args = []string{"sluice", strings.Fields(command)[0], "--help"}
	}
	var out bytes.Buffer
	if code := cli.Main(t.Context(), args, cli.Env{Stdout: &out, Stderr: &out}); code != 0 {
		t.Fatalf("%q: exit code %d", args, code)
	}
	return out.String()
}

// checkedLines returns the lines of the animation in docs that are the same in each run, except for numbers: chapters,
// commands and checks.
func checkedLines(t *testing.T) []string {
	t.Helper()
	svg, err := os.ReadFile("../../docs/demo.svg")
	if err != nil {
		t.Fatal(err)
	}
	lines := slices.DeleteFunc(linesOf(t, string(svg)), func(line string) bool {
		return !regexp.MustCompile(`^(  \d+  |   ✓ |     \$ )\S`).MatchString(line)
	})
	if len(lines) < 20 {
		t.Fatalf("docs/demo.svg has no lines of the demo, but %q", lines)
	}
	return lines
}

// shape replaces the parts that differ between two runs: numbers, the pods that answered, and blanks.
func shape(text string) string {
	text = regexp.MustCompile(`[\d.,]*\d`).ReplaceAllString(text, "0")
	text = regexp.MustCompile(`[█▏▎▍▌▋▊▉]+`).ReplaceAllString(text, "")
	return regexp.MustCompile(`[ \t]+`).ReplaceAllString(text, " ")
}
