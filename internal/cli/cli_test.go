package cli

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/pflag"

	"github.com/sluice-proxy/sluice/internal/config"
)

func TestWaitFor(t *testing.T) {
	wrong := errors.New("wrong")
	for _, tt := range []struct {
		name    string
		written time.Duration // when nothing is written any more
		after   time.Duration // when it ends
		took    time.Duration
		want    error
	}{
		{"there already", 0, 0, 0, wrong},
		{"in time", 0, grace / 2, grace / 2, wrong},
		{"too late", 0, time.Hour, grace, nil},
		{"ends before it ever wrote", time.Hour, grace / 2, grace / 2, wrong},
		{"a long write is finished", 10 * time.Second, 10*time.Second + grace/2, 10*time.Second + grace/2, wrong},
		{"too late after a long write", 10 * time.Second, time.Hour, 10*time.Second + grace, nil},
		{"a write that never ends", time.Hour, 2 * time.Hour, writeTime + grace, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				done := make(chan error, 1)
				timer := time.AfterFunc(tt.after, func() { done <- wrong })
				defer timer.Stop()
				synctest.Wait()
				began := time.Now()
				written := make(chan struct{})
				defer time.AfterFunc(tt.written, func() { close(written) }).Stop()
				if err := waitFor(done, written); !errors.Is(err, tt.want) {
					t.Errorf("waitFor = %v, want %v", err, tt.want)
				}
				if took := time.Since(began); took != tt.took {
					t.Errorf("took %v, want %v", took, tt.took)
				}
			})
		})
	}
}

// Stopping is promised within a second after the last write, and before Kubernetes and systemd kill the program.
func TestGraceLeavesTimeToExit(t *testing.T) {
	if grace > 900*time.Millisecond {
		t.Errorf("grace is %v, want less than a second by some", grace)
	}
	if writeTime+grace > 25*time.Second {
		t.Errorf("stopping takes up to %v, want less than 30s by some", writeTime+grace)
	}
}

// The help lists every flag once.
func TestHelpShowsEveryFlagOnce(t *testing.T) {
	var out bytes.Buffer
	if status := Main(t.Context(), []string{"sluice", "--help"}, Env{Stdout: &out, Stderr: &out}); status != 0 {
		t.Fatalf("status %d:\n%s", status, &out)
	}
	shown := map[string]int{}
	for line := range strings.Lines(out.String()) {
		for word := range strings.FieldsSeq(line) {
			if !strings.HasPrefix(word, "-") {
				break
			}
			if name, ok := strings.CutPrefix(word, "--"); ok {
				name, _, _ = strings.Cut(name, "[")
				shown[name]++
			}
		}
	}
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	config.NewFlags(fs)
	fs.VisitAll(func(f *pflag.Flag) {
		want := 1
		if f.Hidden {
			want = 0
		}
		if shown[f.Name] != want {
			t.Errorf("--%s is shown %d times, want %d", f.Name, shown[f.Name], want)
		}
	})
}

func TestVersion(t *testing.T) {
	if v := version(); !strings.HasPrefix(v, "v") {
		t.Errorf("version %q, want one that begins with v", v)
	}
}
