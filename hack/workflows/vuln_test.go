package workflows_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The exit status of hack/vuln.sh differs between vulnerabilities, none, and a search that did not run.
func TestVulnSaysWhenTheDatabaseCannotBeReached(t *testing.T) {
	const notRun = "vuln: not run: the database of vulnerabilities cannot be reached\n"
	tests := map[string]struct {
		govulncheck string
		version     string
		status      int
		output      string
	}{
		"none": {"echo No vulnerabilities found.", "", 0, "No vulnerabilities found.\n"},
		"one":  {"echo Vulnerability; exit 3", "", 3, "Vulnerability\n"},
		"unreachable": {
			"echo 'govulncheck: fetching vulnerabilities: no such host' >&2; exit 1", "", 75,
			"govulncheck: fetching vulnerabilities: no such host\n" + notRun,
		},
		"failed":    {"echo 'no go.mod file' >&2; exit 1", "", 1, "no go.mod file\n"},
		"arguments": {`echo "$@"`, "", 0, "-db https://vuln.example ./...\n"},
		"openvex":   {`echo "$@"`, "v1.2.3", 0, "-db https://vuln.example -format openvex ./...\n"},
		"openvex's author and product": {
			`echo '"author": "Unknown Author", "@id": "Unknown Product"'`, "v1.2.3", 0,
			`"author": "https://github.com/sluice-proxy/sluice", ` +
				`"@id": "pkg:golang/github.com/sluice-proxy/sluice@v1.2.3"` + "\n",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), "govulncheck")
			if err := os.WriteFile(program, []byte("#!/bin/sh\n"+test.govulncheck+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			args := []string{program}
			if test.version != "" {
				args = append(args, test.version)
			}
			command := exec.CommandContext(t.Context(), "../vuln.sh", args...)
			command.Env = append(os.Environ(), "VULN_DB=https://vuln.example")
			var output strings.Builder
			command.Stdout, command.Stderr = &output, &output
			status := 0
			if err := command.Run(); err != nil {
				var exit *exec.ExitError
				if !errors.As(err, &exit) {
					t.Fatal(err)
				}
				status = exit.ExitCode()
			}
			if status != test.status || output.String() != test.output {
				t.Errorf("status %d\n%s\nwant %d\n%s", status, &output, test.status, test.output)
			}
		})
	}
}
