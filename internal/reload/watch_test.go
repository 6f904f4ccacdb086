package reload

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), 0o644))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// polled is a watch under test.
type polled struct {
	watch
	t *testing.T
}

// start watches a file whose content is known.
func start(t *testing.T, path string) *polled {
	t.Helper()
	p := &polled{watch{path: path}, t}
	p.becomes()
	return p
}

// want polls the file, and verifies whether it reports a change.
func (p *polled) want(what string, change bool) {
	p.t.Helper()
	if got := p.changed(); got != change {
		p.t.Errorf("%s: change reported: %v, want %v", what, got, change)
	}
}

// becomes verifies that a change is reported once, at the second poll.
func (p *polled) becomes() {
	p.t.Helper()
	p.want("at the first poll", false)
	p.want("at the second poll", true)
	p.stays()
}

// stays verifies that no change is reported.
func (p *polled) stays() {
	p.t.Helper()
	for range 3 {
		p.want("without a change", false)
	}
}

// mounted makes a folder as the kubelet mounts a ConfigMap, and returns the path of the file in it.
func mounted(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "..1"), 0o755))
	write(t, filepath.Join(dir, "..1", "config.conf"), text)
	must(t, os.Symlink("..1", filepath.Join(dir, "..data")))
	must(t, os.Symlink("..data/config.conf", filepath.Join(dir, "config.conf")))
	return filepath.Join(dir, "config.conf")
}

// swap replaces the files of such a folder, as the kubelet does.
func swap(t *testing.T, path, version, text string) {
	t.Helper()
	dir := filepath.Dir(path)
	old, err := os.Readlink(filepath.Join(dir, "..data"))
	must(t, err)
	must(t, os.Mkdir(filepath.Join(dir, version), 0o755))
	write(t, filepath.Join(dir, version, "config.conf"), text)
	must(t, os.Symlink(version, filepath.Join(dir, "..data_tmp")))
	must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	must(t, os.RemoveAll(filepath.Join(dir, old)))
}

// Every update of a ConfigMap that changes this file is reported.
func TestConfigMap(t *testing.T) {
	path := mounted(t, "one\n")
	p := start(t, path)
	swap(t, path, "..2", "two\n")
	p.becomes()
	swap(t, path, "..3", "two\n")
	p.stays()
	swap(t, path, "..4", "three\n")
	p.becomes()
}

// However a program saves a file, a change is reported.
func TestWaysToSave(t *testing.T) {
	for name, save := range map[string]func(t *testing.T, path, text string){
		"in place": write,
		"a new one renamed over it": func(t *testing.T, path, text string) {
			write(t, path+".tmp", text)
			must(t, os.Rename(path+".tmp", path))
		},
		"the folder replaced": func(t *testing.T, path, text string) {
			dir := filepath.Dir(path)
			must(t, os.Mkdir(dir+".new", 0o755))
			write(t, filepath.Join(dir+".new", filepath.Base(path)), text)
			must(t, os.Rename(dir, dir+".old"))
			must(t, os.Rename(dir+".new", dir))
			must(t, os.RemoveAll(dir+".old"))
		},
		"with the size and the time of before": func(t *testing.T, path, text string) {
			info, err := os.Stat(path)
			must(t, err)
			write(t, path, text)
			must(t, os.Chtimes(path, info.ModTime(), info.ModTime()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "etc", "config.conf")
			must(t, os.Mkdir(filepath.Dir(path), 0o755))
			write(t, path, "one\n")
			p := start(t, path)
			for _, text := range []string{"two\n", "six\n"} {
				save(t, path, text)
				p.becomes()
			}
		})
	}
}

// A file that changes between two polls is not reported yet.
func TestHalfWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.conf")
	write(t, path, "one: 1\n")
	p := start(t, path)
	for _, text := range []string{"two: 1\nthr", "two: 1\nthree: 2\n", ""} {
		write(t, path, text)
		p.want("half written", false)
	}
	must(t, os.Remove(path))
	p.becomes()
	write(t, path, "one: 1\n")
	p.becomes()
}

// Other files of the folder, and the time of the file, do not matter.
func TestOtherFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.conf")
	write(t, path, "one\n")
	p := start(t, path)
	write(t, path+".swp", "x")
	later := time.Now().Add(time.Hour)
	must(t, os.Chtimes(path, later, later))
	p.stays()
}
