package textfile

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Only regular files are read, and no path blocks the reader.
func TestReadsOnlyRegularFiles(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	must(t, os.WriteFile(at("file"), []byte("12345678"), 0o600))
	must(t, syscall.Mkfifo(at("fifo"), 0o600))
	must(t, os.Mkdir(at("directory"), 0o700))
	for name, to := range map[string]string{
		"link": "file", "to-fifo": "fifo", "to-zero": "/dev/zero", "to-memory": "/proc/self/mem",
		"to-kernel-log": "/proc/kmsg", "loop": "loop", "dangling": "nowhere",
	} {
		must(t, os.Symlink(to, at(name)))
	}
	for _, tc := range []struct {
		name string
		want string // part of the error; empty if the file is read
	}{
		{"file", ""},
		{"link", ""},
		{"fifo", "is a named pipe (FIFO); only regular files are read"},
		{"to-fifo", "is a named pipe (FIFO)"},
		{"to-zero", "is a device"},
		{"directory", "is a directory"},
		{"to-memory", "input/output error"},
		{"loop", "too many levels of symbolic links"},
		{"dangling", "no such file"},
	} {
		data, err := Read(at(tc.name), 8)
		switch {
		case tc.want == "" && (err != nil || string(data) != "12345678"):
			t.Errorf("%s: %q, %v", tc.name, data, err)
		case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want) ||
			!strings.Contains(err.Error(), at(tc.name)) && tc.name != "to-memory"):
			t.Errorf("%s: error %v, want %q", tc.name, err, tc.want)
		}
	}
	_, _ = Read(at("to-kernel-log"), 1<<30) // may be readable, but must not block
}

// A file of more than the limit is refused by its size, before it is read.
func TestTooLarge(t *testing.T) {
	path := filepath.Join(t.TempDir(), "large")
	must(t, os.WriteFile(path, nil, 0o600))
	must(t, os.Truncate(path, 1<<40))
	_, err := Read(path, 1<<20)
	if want := path + " is too large: it has 1 TiB; the limit is 1 MiB"; err == nil || err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
}

// A file that grows while it is read is read up to the limit.
func TestGrowing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "growing")
	must(t, os.WriteFile(path, []byte("1234"), 0o600))
	f, err := Open(path)
	must(t, err)
	defer f.Close()
	must(t, os.WriteFile(path, []byte("123456789"), 0o600))
	if _, err := f.Read(8); err == nil || !strings.Contains(err.Error(), "the limit is 8 bytes") {
		t.Errorf("error %v", err)
	}
}

func TestKinds(t *testing.T) {
	for mode, want := range map[fs.FileMode]string{
		fs.ModeDir: "a directory", fs.ModeNamedPipe: "a named pipe (FIFO)", fs.ModeSocket: "a socket",
		fs.ModeDevice | fs.ModeCharDevice: "a device", fs.ModeIrregular: "not a regular file",
	} {
		if got := kindOf(mode); got != want {
			t.Errorf("%v is %s, want %s", mode, got, want)
		}
	}
}
