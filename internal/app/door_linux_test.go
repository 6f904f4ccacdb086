package app

import (
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/preflight"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/internal/testing/texttest"
)

// A daemon without a place for its socket serves all the same, keeps its lock, and logs what to do. Preflight knows
// of it.
func TestServingWithoutASocket(t *testing.T) {
	caches := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", caches)
	if err := os.MkdirAll(caches+"/sluice/control.new/in/the/way", 0o700); err != nil {
		t.Fatal(err)
	}
	o := options(t, "--proxy-mode=userspace", "--bind=loopback", "--manifests="+manifests(t, webService))
	o.NetNS = kerneltest.Namespace(t)
	log := &texttest.Buffer{}
	o.Log = slog.New(slog.NewTextHandler(log, nil))
	r := run(t, o)
	r.sync()
	text := ""
	for end := time.Now().Add(testTimeout); !strings.Contains(text, "explain cannot connect"); {
		if text += log.Take(); time.Now().After(end) {
			t.Fatalf("no warning in\n%s", text)
		}
		time.Sleep(time.Millisecond)
	}
	if !strings.Contains(text, caches) || !strings.Contains(text, "level=WARN") {
		t.Errorf("the log is\n%s\nwant a warning with %s", text, caches)
	}
	if got := o.running(t.Context()); got == nil || *got != (preflight.Daemon{}) {
		t.Errorf("preflight finds %v, want a daemon that does not answer", got)
	}
	if err := r.stop(); err != nil {
		t.Errorf("it ended with %v", err)
	}
	if held, err := newLock(o.control(), o.Log).acquire(t.Context()); err != nil {
		t.Errorf("the lock is not free afterwards: %v", err)
	} else {
		release(held)
	}
}
