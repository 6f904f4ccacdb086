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

// polled is a watch with a fake clock.
type polled struct {
	watch
	t   *testing.T
	now time.Time
}

// start watches a file whose content is known.
func start(t *testing.T, path string) *polled {
	t.Helper()
	p := &polled{watch{path: path}, t, time.Now()}
	p.within(incompleteTime+2*pollPeriod, true)
	return p
}

// within polls for a while and checks whether the watch reports a change.
func (p *polled) within(d time.Duration, want bool) {
	p.t.Helper()
	for end := p.now.Add(d); p.now.Before(end); {
		p.now = p.now.Add(pollPeriod)
		if p.changed(p.now) {
			if !want {
				p.t.Error("a change is reported")
			}
			return
		}
	}
	if want {
		p.t.Errorf("no change is reported within %v", d)
	}
}

// soon is long enough for a complete file, but not for an incomplete one.
const soon = 2 * pollPeriod

// becomes verifies that a change is reported once.
func (p *polled) becomes(within time.Duration) {
	p.t.Helper()
	p.within(within, true)
	p.within(time.Minute, false)
}

// mounted makes a folder as the kubelet mounts a ConfigMap, and returns the path
// of the file in it.
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
	p.becomes(soon)
	swap(t, path, "..3", "two\n")
	p.within(time.Minute, false)
	swap(t, path, "..4", "three\n")
	p.becomes(soon)
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
				p.becomes(rereadPeriod + soon)
			}
		})
	}
}

// A file that ends in the middle of a line is reported later.
func TestHalfWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.conf")
	write(t, path, "one: 1\n")
	p := start(t, path)
	write(t, path, "two: 1\nthr")
	p.within(incompleteTime/2, false)
	write(t, path, "two: 1\nthree: 2\n")
	p.becomes(soon)
	write(t, path, "")
	p.within(incompleteTime/2, false)
	p.becomes(incompleteTime)
	write(t, path, `{"four": 4}`)
	p.becomes(soon)
}

// A file that never stops changing is reported.
func TestFileThatKeepsChanging(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.conf")
	write(t, path, "0")
	p := start(t, path)
	text, reported := "0", false
	for end := p.now.Add(maxWait + soon); p.now.Before(end) && !reported; {
		text += "1"
		write(t, path, text)
		p.now = p.now.Add(pollPeriod)
		reported = p.changed(p.now)
	}
	if !reported {
		t.Error("a file that keeps changing is never read")
	}
}

// Other files of the folder, and the time of the file, do not matter.
func TestOtherFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.conf")
	write(t, path, "one\n")
	p := start(t, path)
	write(t, path+".swp", "x")
	later := time.Now().Add(time.Hour)
	must(t, os.Chtimes(path, later, later))
	p.within(time.Minute, false)
}
