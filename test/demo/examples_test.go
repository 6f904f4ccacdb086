//go:build linux

package main

import (
	"bytes"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cli"
)

const examples = "../../examples"

// plan runs `sluice plan` for node-a.
func plan(t *testing.T, path string) (stdout, stderr string, code int) {
	t.Helper()
	var out, problems bytes.Buffer
	env := cli.Env{
		Stdin: strings.NewReader(""), Stdout: &out, Stderr: &problems,
		Hostname: func() (string, error) { return "node-a", nil },
	}
	code = cli.Main(t.Context(), []string{"sluice", "plan", "-f", path}, env)
	return out.String(), problems.String(), code
}

// Each example programs the feature that it demonstrates, without reported problems.
func TestExamples(t *testing.T) {
	shows := map[string][]string{ // words that are on one line of the plan
		"web.yaml":              {"10.96.0.10 10.180.1.1", "fd00:10:96::10 fd00:10:180:1::1", "30080 10.180.0.1"},
		"load-balancer.yaml":    {"198.51.100.10 10.180.0.1", "2001:db8:198::10 fd00:10:180::1", "198.51.100.10 203.0.113.0"},
		"dns.yaml":              {"10.96.0.53 udp 10.180.0.1", "10.96.0.53 tcp 10.180.0.1"},
		"session-affinity.yaml": {"element affinity 10.96.0.30"},
		"external-local.yaml":   {"30040 outside 10.180.0.1"},
		"dual-stack.yaml":       {"fd00:10:96::50 fd00:10:180:1::1", "10.96.0.50 10.180.1.1"},
	}
	files, err := filepath.Glob(filepath.Join(examples, "*.yaml"))
	if err != nil || len(files) != len(shows) {
		t.Errorf("%d files, %d are known here: %v", len(files), len(shows), err)
	}
	for _, file := range append(files, examples) {
		name := filepath.Base(file)
		t.Run(name, func(t *testing.T) {
			out, problems, code := plan(t, file)
			if code != 0 || problems != "" {
				t.Fatalf("exit code %d, stderr:\n%s", code, problems)
			}
			for _, want := range shows[name] {
				if !onOneLine(out, strings.Fields(want)) {
					t.Errorf("no line with %q in:\n%s", want, out)
				}
			}
		})
	}
}

// onOneLine reports whether a line contains all of the words.
func onOneLine(text string, words []string) bool {
	for line := range strings.Lines(text) {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			return true
		}
	}
	return false
}
