//go:build linux

package wine_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/test/wine"
)

func TestMain(m *testing.M) { wine.Main(m) }

const module = "github.com/sluice-proxy/sluice/"

// TestSluice runs the program on Windows, as far as Wine is one.
func TestSluice(t *testing.T) {
	p := wine.New(t)
	sluice := p.Build(module + "cmd/sluice")
	t.Run("version", func(t *testing.T) {
		r := p.Run(sluice, "version")
		if r.Code != 0 || !strings.Contains(r.Stdout, "windows/amd64") {
			t.Errorf("%+v", r)
		}
	})
	t.Run("plan", func(t *testing.T) {
		examples, err := filepath.Abs("../../examples")
		if err != nil {
			t.Fatal(err)
		}
		r := p.Run(sluice, append([]string{"plan", "-f", wine.Path(examples)}, loopback()...)...)
		if r.Code != 0 || !strings.Contains(r.Stdout, "default/web") {
			t.Errorf("%+v", r)
		}
	})
	t.Run("bad input", func(t *testing.T) { testBadInput(t, p, sluice) })
}

func loopback() []string { return []string{"--proxy-mode=userspace", "--bind=loopback"} }

func testBadInput(t *testing.T, p *wine.Prefix, sluice string) {
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("kind: [Service\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args   []string
		code   int
		stderr string
	}{
		"no such flag":      {[]string{"--no-such-flag"}, 1, "no-such-flag"},
		"no such file":      {append([]string{"plan", "-f", wine.Path(bad + "-missing")}, loopback()...), 1, "bad.yaml-missing"},
		"a broken file":     {append([]string{"plan", "--strict", "-f", wine.Path(bad)}, loopback()...), 1, "bad.yaml"},
		"a mode of Linux":   {[]string{"plan", "--mode=nftables", "-f", wine.Path(bad)}, 1, "userspace"},
		"nobody to answer":  {[]string{"status"}, 2, "no Sluice of this user is running"},
		"rules, not a bind": {[]string{"plan", "--bind=rules", "-f", wine.Path(bad)}, 1, "loopback"},
	} {
		t.Run(name, func(t *testing.T) {
			if r := p.Run(sluice, tc.args...); r.Code != tc.code || !strings.Contains(r.Stderr, tc.stderr) {
				t.Errorf("%+v, want status %d and %q on standard error", r, tc.code, tc.stderr)
			}
		})
	}
}
