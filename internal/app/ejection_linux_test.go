package app

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/eject"
	"github.com/sluice-proxy/sluice/internal/eject/watch"
)

// What was saved is read again, a file of anything else is an error, and a new one replaces it.
func TestTheFileOfEjections(t *testing.T) {
	path := filepath.Join(t.TempDir(), "7.ejected")
	if err := os.WriteFile(path, []byte("[{\"service\": 7}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	var got watch.Saved
	if err := readJSON(path, &got); err == nil {
		t.Errorf("read %v", got)
	}
	at := time.Unix(1_800_000_000, 0).UTC()
	want := watch.Saved{{
		Namespace: "default", Service: "web", Backend: netip.MustParseAddrPort("10.0.0.1:80"),
		State: eject.State{Phase: eject.Ejected, Times: 2, Since: at, Next: at.Add(10 * time.Second), Failures: 3},
	}}
	if err := writeJSON(path, want); err != nil {
		t.Fatal(err)
	}
	got = nil
	if err := readJSON(path, &got); err != nil {
		t.Fatal(err)
	}
	same := cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
	if d := cmp.Diff(want, got, same); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if len(got.Valid(at.Add(time.Minute))) != 1 || len(got.Valid(at.Add(48*time.Hour))) != 0 {
		t.Error("it is not valid for a day")
	}
}
