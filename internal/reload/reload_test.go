package reload

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/sluice-proxy/sluice/internal/config"
)

const header = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// world is a process with a configuration file, without the file system.
type world struct {
	*Reloader
	text       string
	out        bytes.Buffer
	delay      time.Duration
	mu         sync.Mutex // guards impossible
	impossible error
	fails      error
	replaced   int
	refused    int
}

// begin starts a process with flags and a file.
func begin(t *testing.T, text string, args ...string) *world {
	t.Helper()
	w := &world{text: text}
	set := pflag.NewFlagSet("sluice", pflag.ContinueOnError)
	flags := config.NewFlags(set)
	if err := set.Parse(append(args, "--config=/etc/c.conf")); err != nil {
		t.Fatal(err)
	}
	env := config.Env{
		Hostname: func() (string, error) { return "host-1", nil },
		ReadFile: func(string) ([]byte, error) {
			if w.text == "" {
				return nil, os.ErrNotExist
			}
			return []byte(header + w.text), nil
		},
	}
	load := func() (*config.Config, []string, error) {
		return flags.Load(env, config.Options{Modes: []string{"nftables", "iptables"}})
	}
	cfg, _, err := load()
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(&w.out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	w.Reloader = New(Options{
		File: flags.File(), Config: cfg, Load: load, Log: log, Before: Count{Accepted: 3},
		Possible: func(context.Context, *config.Config) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.impossible
		},
		Delay: func() time.Duration { return w.delay },
		Replace: func(context.Context) error {
			if w.fails == nil {
				w.replaced++
			}
			return w.fails
		},
		Refused: func(error) { w.refused++ },
	})
	return w
}

// read reads the file as a poll does.
func (w *world) read(t *testing.T) { w.step(t.Context(), func(State) bool { return true }) }

// becomes changes the file, and checks the log and whether the program was re-executed.
func (w *world) becomes(t *testing.T, text string, replaced int, logged ...string) {
	t.Helper()
	w.text = text
	w.out.Reset()
	before := w.replaced
	w.read(t)
	if got := w.replaced - before; got != replaced {
		t.Errorf("executed anew %d times, want %d", got, replaced)
	}
	want := strings.Join(logged, "\n")
	if want != "" {
		want += "\n"
	}
	if diff := cmp.Diff(want, w.out.String()); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
}

// A changed file, the mode included, makes the program re-execute itself. Another
// spelling of the same values, or a field that a flag overrides, does not.
func TestChange(t *testing.T) {
	w := begin(t, "conntrack: {min: 5}\n", "--oom-score-adj=5")
	w.becomes(t, "conntrack:\n  min: 5 # the same in other words\noomScoreAdj: 7\n", 0)
	w.becomes(t, "conntrack: {min: 6}\nportRange: 1-2\nmode: iptables\n", 1,
		`level=WARN msg="portRange has an effect in mode userspace only: the mode is iptables"`,
		`level=INFO msg="The configuration file has changed" file=/etc/c.conf delay=0s `+
			`changed="conntrack.min: 5 -> 6; mode: nftables -> iptables; `+
			`nodePortAddresses: [\"primary\"] -> [\"all\"]; portRange: \"\" -> 1-2"`)
	if s := w.State(); s.Count != (Count{Accepted: 3}) || !s.Due.IsZero() || s.Refused != nil || w.refused != 0 {
		t.Errorf("state %+v", s)
	}
}

// An invalid file changes nothing and is reported once, with all errors.
func TestBadFile(t *testing.T) {
	w := begin(t, "conntrack: {min: 5}\n")
	const refused = `level=ERROR msg="The changed configuration file is invalid; the old configuration stays in force" ` +
		`file=/etc/c.conf error=`
	bad := "conntrack: {min: -6}\noomScoreAdj: 2000\n"
	w.becomes(t, bad, 0, refused+`"configuration: 2 errors:\n  `+
		`KubeProxyConfiguration.conntrack.min: Invalid value: -6: must be 0 or more (/etc/c.conf:3)`+
		`\n  KubeProxyConfiguration.oomScoreAdj: Invalid value: 2000: must be -1000 to 1000 (/etc/c.conf:4)"`)
	s := w.State()
	if s.Refused == nil || s.RefusedAt.Before(s.LoadedAt) || s.Count != (Count{3, 1}) || w.refused != 1 {
		t.Errorf("state %+v", s)
	}
	w.becomes(t, bad, 0) // read again, nothing new
	if again := w.State().RefusedAt; !again.Equal(s.RefusedAt) {
		t.Errorf("refused at %v, want the first time, %v", again, s.RefusedAt)
	}
	w.becomes(t, "", 0, refused+`"read --config: file does not exist"`)
	w.becomes(t, "conntrack: {min: 5}\n", 0,
		`level=INFO msg="The configuration file is the same as the configuration in force again" file=/etc/c.conf`)
	if s = w.State(); s.Refused != nil || s.Count != (Count{4, 2}) || w.refused != 2 {
		t.Errorf("state %+v, reported %d times", s, w.refused)
	}
	w.impossible = errors.New("no such thing in this kernel")
	w.becomes(t, "mode: iptables\n", 0, refused+`"no such thing in this kernel"`)
	w.impossible, w.fails = nil, errors.New("no memory")
	w.text = "mode: iptables\n"
	w.read(t)
	if s = w.State(); s.Refused == nil || s.Refused.Error() != "no memory" || w.replaced != 0 {
		t.Errorf("state %+v", s)
	}
}

// A change waits for the delay, except after Check, and can be reverted meanwhile.
func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begin(t, "conntrack: {min: 5}\n")
		poll := func() { w.step(t.Context(), func(State) bool { return false }) }
		w.delay = time.Minute
		w.becomes(t, "conntrack: {min: 6}\n", 0,
			`level=INFO msg="The configuration file has changed" file=/etc/c.conf delay=1m0s changed="conntrack.min: 5 -> 6"`)
		w.becomes(t, "conntrack: {min: 5}\n", 0,
			`level=INFO msg="The configuration file is the same as the configuration in force again" file=/etc/c.conf`)
		w.text = "conntrack: {min: 6}\n"
		w.read(t)
		time.Sleep(59 * time.Second)
		w.text = "conntrack: {min: 7}\n"
		w.read(t) // another change does not begin anew
		poll()
		if w.replaced != 0 {
			t.Error("executed anew before the time")
		}
		time.Sleep(time.Second)
		poll()
		if w.replaced != 1 {
			t.Errorf("executed anew %d times when it was time", w.replaced)
		}
		w.read(t)
		w.Check(t.Context())
		if w.replaced != 2 {
			t.Errorf("executed anew %d times when asked", w.replaced)
		}
		w.text = "conntrack: {min: 8}\n"
		w.read(t)
		w.text = "conntrack: {min: -8}\n"
		w.read(t)
		time.Sleep(time.Hour)
		poll()
		if w.replaced != 2 || w.State().Refused == nil {
			t.Errorf("a wrong file after a right one: %+v", w.State())
		}
	})
}

// A process that stops during a check logs no error.
func TestStop(t *testing.T) {
	w := begin(t, "oomScoreAdj: 1\n")
	ctx, stop := context.WithCancel(t.Context())
	stop()
	w.text, w.impossible = "oomScoreAdj: 2\n", context.Canceled
	w.Check(ctx)
	if s := w.State(); w.out.Len() > 0 || s.Count != (Count{Accepted: 3}) || w.replaced != 0 {
		t.Errorf("state %+v, logged %s", s, &w.out)
	}
}

// Run watches a file on disk, also one that changed before, and reads a refused one again.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begin(t, "oomScoreAdj: 1\n")
		w.opt.File = filepath.Join(t.TempDir(), "config.conf")
		write(t, w.opt.File, "any text\n")
		w.text, w.impossible = "oomScoreAdj: 2\n", errors.New("not now")
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		time.Sleep(3 * pollPeriod)
		synctest.Wait()
		if w.refused != 1 {
			t.Errorf("refused %d times", w.refused)
		}
		w.mu.Lock()
		w.impossible = nil
		w.mu.Unlock()
		time.Sleep(retryPeriod + pollPeriod)
		synctest.Wait()
		if w.replaced != 1 {
			t.Errorf("executed anew %d times", w.replaced)
		}
		stop()
		if err := <-done; err != nil {
			t.Errorf("Run returned %v", err)
		}
	})
}

// Without a file Run waits for the end of the context.
func TestNoFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(Options{})
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		r.Check(ctx)
		if err := r.Run(ctx); err != nil || ctx.Err() == nil {
			t.Errorf("Run returned %v, with the context %v", err, ctx.Err())
		}
	})
}
