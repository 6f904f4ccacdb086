package app

import (
	"os"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/seeds"
)

// descriptors counts the file descriptors of this process.
func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// Comparisons on request leave no file descriptors open.
func TestComparingLeavesNothingOpen(t *testing.T) {
	o := options(t, "--manifests="+manifests(t, webService))
	o.NetNS = kerneltest.Namespace(t)
	r := run(t, o)
	r.sync()
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // the collector would close unreferenced files
	client := admin.Dial(admin.Options{NetNS: o.NetNS})
	compare := func() {
		d, err := admin.All[inspect.Step](client.Ask(t.Context(), "/diff", nil))
		if err != nil || len(d) != 0 {
			t.Fatalf("difference %+v (%v), want none", d, err)
		}
	}
	compare()
	before := descriptors(t)
	for range 50 {
		compare()
	}
	const idle = 5 // idle connections that are closed later
	if after := descriptors(t); after > before+idle {
		t.Errorf("%d file descriptors after 50 comparisons, %d before", after, before)
	}
}

// While the loop writes all the time, a comparison finds no difference, or returns an error that it cannot decide.
func TestComparingUnderChurn(t *testing.T) {
	seeds.Long(t)
	path := manifests(t, webService)
	o := options(t, "--manifests="+path)
	o.NetNS = kerneltest.Namespace(t)
	r := run(t, o)
	r.sync()
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ; i++ {
			select {
			case <-end:
				return
			case <-r.syncs:
			case <-time.After(5 * time.Millisecond):
			}
			text := strings.ReplaceAll(webService, "10.244.1.5", "10.244.1."+string(rune('1'+i%9)))
			_ = os.WriteFile(path+".new", []byte(text), 0o600)
			_ = os.Rename(path+".new", path)
		}
	}()
	client := admin.Dial(admin.Options{NetNS: o.NetNS})
	equal, unsure := 0, 0
	for range 8 {
		d, err := admin.All[inspect.Step](client.Ask(t.Context(), "/diff", nil))
		switch {
		case err != nil && strings.Contains(err.Error(), errWriting.Error()):
			unsure++
		case err != nil:
			t.Error(err)
		case len(d) != 0:
			t.Errorf("difference %s", d)
		default:
			equal++
		}
	}
	close(end)
	<-ended
	t.Logf("equal %d times, undecided %d times", equal, unsure)
}
