package app

import (
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/eject"
	"github.com/sluice-proxy/sluice/internal/eject/watch"
)

// What was saved is read again, a file of anything else is ignored with a warning, and a new one replaces it.
func TestTheFileOfEjections(t *testing.T) {
	path := filepath.Join(t.TempDir(), "7.ejected")
	if err := os.WriteFile(path, []byte("[{\"service\": 7}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	d := &daemon{o: Options{Log: slog.New(slog.NewTextHandler(&log, nil))}}
	if got := d.loadEjections(path); got != nil || !strings.Contains(log.String(), "Cannot read the file") {
		t.Errorf("read %v; the log is %q", got, log.String())
	}
	at := time.Now().UTC().Truncate(time.Second)
	want := watch.Saved{{
		Namespace: "default", Service: "web", Backend: netip.MustParseAddrPort("10.0.0.1:80"),
		State: eject.State{Phase: eject.Ejected, Times: 2, Since: at, Next: at.Add(10 * time.Second), Failures: 3},
	}}
	log.Reset()
	d.saveEjections(path, want)
	got := d.loadEjections(path)
	same := cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
	if d := cmp.Diff(want, got, same); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if log.Len() > 0 {
		t.Errorf("the log is %q", log.String())
	}
	if len(got.Valid(at.Add(time.Minute))) != 1 || len(got.Valid(at.Add(48*time.Hour))) != 0 {
		t.Error("it is not valid for a day")
	}
}
