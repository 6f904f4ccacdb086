package reload

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// Anything that replaces the file, also a FIFO that blocks readers, is reported, and the
// file is watched again when it is back.
func TestWatchSurvivesSpecialFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.conf")
	write(t, path, "good 0\n")
	p := start(t, path)
	for name, put := range map[string]func() error{
		"nothing":   func() error { return nil },
		"directory": func() error { return os.Mkdir(path, 0o755) },
		"FIFO":      func() error { return syscall.Mkfifo(path, 0o600) },
		"device":    func() error { return os.Symlink("/dev/zero", path) },
		"memory":    func() error { return os.Symlink("/proc/self/mem", path) },
		"loop":      func() error { return os.Symlink(path, path) },
		"large": func() error {
			write(t, path, "")
			return os.Truncate(path, 200<<20)
		},
	} {
		must(t, os.RemoveAll(path))
		must(t, put())
		p.becomes()
		must(t, os.RemoveAll(path))
		write(t, path, "good "+name+"\n")
		p.becomes()
	}
}
