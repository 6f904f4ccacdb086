package cli

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/windows/service"
)

// With --windows-service the service manager learns of every failure, of an invalid configuration too. Without
// a manager an error says what to do.
func TestWindowsService(t *testing.T) {
	folder := t.TempDir()
	file, log := filepath.Join(folder, "config.yaml"), filepath.Join(folder, "log")
	const text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nwindowsRunAsService: true\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(_ context.Context, name string, program service.Program) error {
		if name != "kube-proxy" {
			t.Errorf("the service is named %q", name)
		}
		return program(t.Context())
	}
	refuse := func(context.Context, string, service.Program) error { return service.ErrNoManager }
	for name, tc := range map[string]struct {
		args    string
		service func(context.Context, string, service.Program) error
		stderr  string
		logged  string // "": there is no log file
	}{
		"invalid": {"--windows-service --healthz-bind-address=nowhere --log-file=" + log + "1", run, "nowhere", ""},
		// Without root the cause is a missing privilege.
		"fails": {"--windows-service --manifests=/missing --log-file=" + log + "2", run, "missing", "missing"},
		"by a file": {
			"--config=" + file + " --log-file=" + log + "3", refuse, "did not start this process: --windows-service", "Starting",
		},
		"no manager": {
			"--windows-service --log-file=" + log + "4", refuse, "remove the setting to run Sluice in a terminal", "Starting",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			env := Env{
				Stdout: &stdout, Stderr: &stderr, Hostname: func() (string, error) { return "node", nil }, Service: tc.service,
				Kinds: []plane.Kind{{Mode: "none", Probe: func(context.Context, int) (plane.Support, error) {
					return plane.Support{}, os.ErrNotExist
				}}},
			}
			if name == "fails" {
				env.Kinds[0].Probe = func(context.Context, int) (plane.Support, error) {
					return plane.Support{}, &os.PathError{Op: "open", Path: "/missing", Err: os.ErrNotExist}
				}
			}
			if code := Main(t.Context(), append([]string{"sluice"}, strings.Fields(tc.args)...), env); code != 1 {
				t.Errorf("status %d", code)
			}
			if !strings.Contains(stderr.String(), tc.stderr) {
				t.Errorf("standard error has %q, want %q", stderr.String(), tc.stderr)
			}
			_, at, _ := strings.Cut(tc.args, "--log-file=")
			if text, err := os.ReadFile(at); !strings.Contains(string(text), tc.logged) || (err == nil) != (tc.logged != "") {
				t.Errorf("the log has %q, %v, want %q", text, err, tc.logged)
			}
		})
	}
}
