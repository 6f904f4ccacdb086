//go:build linux

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cli"
)

const examples = "../../examples"

// plan runs `sluice plan` as on node-a.
func plan(t *testing.T, path string) (stdout, stderr string, code int) {
	t.Helper()
	var out, problems bytes.Buffer
	env := cli.Env{
		Stdin: strings.NewReader(""), Stdout: &out, Stderr: &problems,
		Hostname: func() (string, error) { return "node-a", nil }, ReadFile: os.ReadFile,
	}
	code = cli.Main(t.Context(), []string{"sluice", "plan", "-f", path}, env)
	return out.String(), problems.String(), code
}

// Each example programs what it is there to show, and nothing in it is reported.
func TestExamples(t *testing.T) {
	shows := map[string][]string{
		"web.yaml":              {"10.96.0.10 . tcp . 80", "fd00:10:96::10 . tcp . 80", "tcp . 30080"},
		"load-balancer.yaml":    {"198.51.100.10 . tcp . 80", "2001:db8:198::10 . tcp . 80", "80 . 203.0.113.0"},
		"dns.yaml":              {"10.96.0.53 . udp . 53", "10.96.0.53 . tcp . 53"},
		"session-affinity.yaml": {"10.96.0.30 . tcp . 80", "sticky"},
		"external-local.yaml":   {"tcp . 30040 . 0x00000000 : 10.180.0.1"},
		"dual-stack.yaml":       {"fd00:10:96::50 . tcp . 80 . 0x00000001 : fd00:10:180:1::1", "10.96.0.50 . tcp . 80 . 0x00000001 : 10.180.1.1"},
	}
	files, err := filepath.Glob(filepath.Join(examples, "*"))
	if err != nil || len(files) != len(shows) {
		t.Errorf("%d files, %d are known here: %v", len(files), len(shows), err)
	}
	for _, file := range append(files, examples) {
		name := filepath.Base(file)
		t.Run(name, func(t *testing.T) {
			out, problems, code := plan(t, file)
			if code != 0 || problems != "" {
				t.Fatalf("exit code %d, said:\n%s", code, problems)
			}
			for _, want := range shows[name] {
				if !strings.Contains(out, want) {
					t.Errorf("nothing about %q in:\n%s", want, out)
				}
			}
		})
	}
}
