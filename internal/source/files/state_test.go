package files

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/source"
)

// waitForState waits until a Source has a state, and returns its times.
func waitForState(t *testing.T, src *Source, want source.State) (since, last time.Time) {
	t.Helper()
	var d string
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		got := src.State()
		since, last = got.Since, got.LastEvent
		got.Since, got.LastEvent = time.Time{}, time.Time{}
		if d = cmp.Diff(want, got); d == "" {
			return since, last
		}
	}
	t.Errorf("after 30 s (-want +got):\n%s", d)
	return since, last
}

// The state has the number of files, the time of the last change, and the number of files with problems.
func TestState(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write(t, at("a.yaml"), svc("a", "10.0.0.1"))
	r := run(t, dir)
	want := source.State{From: dir, Connected: true, Files: 1}
	since, first := waitForState(t, r.src, want)
	if since.IsZero() || first.IsZero() || since.Before(first) {
		t.Errorf("read at %v, all read at %v", first, since)
	}

	write(t, at("b.yaml"), svc("b", "10.0.0.300"))
	want.Files, want.Problems, want.Trouble = 2, 1, "2 problems in "+at("b.yaml")
	again, second := waitForState(t, r.src, want)
	if !again.Equal(since) || !second.After(first) {
		t.Errorf("all read at %v and then at %v; the last file at %v and then at %v", since, again, first, second)
	}

	must(t, os.Remove(at("b.yaml")))
	want.Files, want.Problems, want.Trouble = 1, 0, ""
	if _, third := waitForState(t, r.src, want); !third.After(second) {
		t.Errorf("a file was deleted at %v, the previous change was at %v", third, second)
	}
}

// The state before and after everything was read once, with standard input as a file.
func TestStateBeforeAndAfterLoad(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.yaml")
	write(t, file, svc("a", "10.0.0.1"))
	src := New(cluster.NewStore(), Options{Paths: []string{file, "-"}, Stdin: strings.NewReader(svc("b", "10.0.0.2"))})
	const once = "/dev/stdin can be read once only"
	if d := cmp.Diff(source.State{From: file + ", /dev/stdin", Unrepeatable: once}, src.State()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	must(t, src.Load())
	waitForState(t, src, source.State{From: file + ", /dev/stdin", Connected: true, Files: 2, Unrepeatable: once})
}

// reports collects reported problems.
type reports struct {
	mu    sync.Mutex
	lines []string
}

func (r *reports) add(problems []route.Problem) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range problems {
		r.lines = append(r.lines, p.String())
	}
}

func (r *reports) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.lines)
}

// wait waits until a problem with these words is reported.
func (r *reports) wait(t *testing.T, words string) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !strings.Contains(strings.Join(r.all(), "\n"), words) {
		if time.Now().After(deadline) {
			t.Fatalf("%q is not reported; reported %.2000q", words, r.all())
		}
		time.Sleep(5 * time.Millisecond)
	}
}
