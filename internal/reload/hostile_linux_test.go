package reload

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/sluice-proxy/sluice/internal/config"
)

// starting runs a watch and returns a channel that receives what the file says,
// or why it cannot be read, at every change.
func starting(t *testing.T, w *watch) <-chan string {
	t.Helper()
	w.log = slog.New(slog.DiscardHandler)
	w.open, w.poll = fsnotify.NewWatcher, often
	calls := make(chan string, 100)
	var running sync.WaitGroup
	running.Go(func() {
		w.told = w.look()
		w.run(t.Context(), func() {
			data, err := config.ReadFile(w.path)
			if err != nil {
				data = []byte(err.Error())
			}
			calls <- string(data)
		})
	})
	t.Cleanup(running.Wait)
	return calls
}

// receive waits for a change after which the file says something with these
// words.
func receive(t *testing.T, calls <-chan string, words string) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		select {
		case got := <-calls:
			if strings.Contains(got, words) {
				return
			}
		case <-deadline:
			t.Fatalf("no change to %q in 20 s", words)
		}
	}
}

// Whatever takes the place of the file, it is reported, and the file is
// followed again as soon as it is back.
func TestWatchSurvivesWhatIsNoFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.conf")
	write(t, path, "good 0\n")
	calls := starting(t, &watch{path: path, unrest: maxUnrest})
	receive(t, calls, "good 0")
	for name, tc := range map[string]struct {
		put  func() error
		want string
	}{
		"FIFO":   {func() error { return syscall.Mkfifo(path, 0o600) }, "named pipe"},
		"device": {func() error { return os.Symlink("/dev/zero", path) }, "is a device"},
		"memory": {func() error { return os.Symlink("/proc/self/mem", path) }, "input/output error"},
		"loop":   {func() error { return os.Symlink(path, path) }, "too many levels of symbolic links"},
		"large": {func() error {
			write(t, path, "")
			return os.Truncate(path, 200<<20)
		}, "200 MiB; the limit is 1 MiB"},
	} {
		remove(t, path)
		if err := tc.put(); err != nil {
			t.Fatal(err)
		}
		receive(t, calls, tc.want)
		remove(t, path)
		write(t, path, "good "+name+"\n")
		receive(t, calls, "good "+name)
	}
}

// A file that never stops changing is read nevertheless.
func TestWatchReadsAFileThatNeverRests(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.conf")
	write(t, path, "before\n")
	calls := starting(t, &watch{path: path, unrest: 10 * calm})
	receive(t, calls, "before")
	stop := make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() {
		for tick := time.NewTicker(calm / 10); ; {
			select {
			case <-stop:
				return
			case now := <-tick.C:
				_ = os.WriteFile(path, []byte("changing "+now.String()+"\n"), 0o600)
			}
		}
	})
	receive(t, calls, "changing")
	close(stop)
	writing.Wait()
}
