// Package dist tests that the files of a release depend on the commit alone.
package dist

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Two builds of a commit, in other folders, at other times, by other users with other settings, give the same files.
// The program for this processor is also the same if nothing is taken from a cache of compiled packages of somebody
// else.
func TestReproducible(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a release twice")
	}
	source := commit(t)
	first, second := clone(t, source), clone(t, source)
	run(t, first, "make", "dist")
	// Another user, with write access to the same caches of modules and of compiled packages. Git trusts the folder for
	// this user only.
	run(t, second, "chown", "-R", "65534:65534", ".")
	run(t, second, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=+dac_override",
		"--ambient-caps=+dac_override",
		"env", "TZ=Asia/Tokyo", "LC_ALL=C.UTF-8", "GOAMD64=v3", "GOFLAGS=-tags=other", "bash", "-c", "umask 077; make dist")
	want, got := files(t, first), files(t, second)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("SHA-256 of files differ (-first +second):\n%s", diff)
	}
	if len(want) < 20 {
		t.Errorf("%d files", len(want))
	}
	caches, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	program := "bin/sluice-linux-" + runtime.GOARCH
	before := sum(t, filepath.Join(first, program))
	run(t, first, "env", "GOCACHE="+filepath.Join(caches, "sluice-build", "dist-cache"), "make", program)
	if after := sum(t, filepath.Join(first, program)); after != before {
		t.Errorf("%s has SHA-256 %s, and %s with another cache", program, before, after)
	}
}

// A tree with uncommitted changes is refused, and the files of an earlier run stay.
func TestDirtyTree(t *testing.T) {
	dir := clone(t, commit(t))
	for _, name := range []string{"dist/SHA256SUMS", "changed.go"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte("package sluice\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "make", "dist")
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "commit these changes first") ||
		!strings.Contains(string(out), "?? changed.go") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := os.Stat(filepath.Join(dir, "dist/SHA256SUMS")); err != nil {
		t.Error(err)
	}
}

// commit returns a repository with one commit, of the files that this one has now.
func commit(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	script := `git -C "$1" ls-files -z --cached --others --exclude-standard | ` +
		`(cd "$1"; tar -c --null --files-from=- --ignore-failed-read) | tar -x
		git init -q; git add --all; git -c user.name=test -c user.email=test@example.com commit -q -m test`
	run(t, dir, "bash", "-euo", "pipefail", "-c", script, "commit", projectPath(t))
	return dir
}

func clone(t *testing.T, source string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { //nolint:gosec // another user builds here
		t.Fatal(err)
	}
	run(t, dir, "git", "clone", "-q", source, ".")
	return dir
}

func projectPath(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func run(t *testing.T, dir string, command ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
}

// files returns the SHA-256 of each file in dist/, with its mode.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	root := filepath.Join(dir, "dist")
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		all[name] = fmt.Sprintf("%v %s", info.Mode(), sum(t, filepath.Join(root, name)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func sum(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(content))
}
