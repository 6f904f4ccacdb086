package reload

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
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
	text    string
	out     bytes.Buffer
	applied []*config.Config
	told    int

	applying func() // done while a configuration is applied
}

// begin starts a process with flags and a file.
func begin(t *testing.T, text string, args ...string) *world {
	t.Helper()
	w := &world{text: text, applying: func() {}}
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
		return flags.Load(env, config.Options{Modes: []string{"nftables"}})
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
		File: flags.File(), Config: cfg, Load: load, Log: log,
		Apply: func(_ context.Context, old, next *config.Config) {
			if old != w.State().InForce {
				t.Errorf("what is applied follows %+v, which is not in force", old)
			}
			w.applied = append(w.applied, next)
			w.applying()
		},
		Changed: func(State) { w.told++ },
	})
	return w
}

// becomes changes the file, and checks what is logged and how many
// configurations were applied for it.
func (w *world) becomes(t *testing.T, text string, applied int, logged ...string) {
	t.Helper()
	w.text = text
	w.out.Reset()
	before := len(w.applied)
	w.Check(t.Context())
	if got := len(w.applied) - before; got != applied {
		t.Errorf("applied %d times, want %d", got, applied)
	}
	want := strings.Join(logged, "\n")
	if want != "" {
		want += "\n"
	}
	if diff := cmp.Diff(want, w.out.String()); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
}

// A change that can be taken over is, and one line says what holds now.
func TestLiveChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begin(t, "conntrack: {min: 5}\n")
		began := time.Now()
		time.Sleep(time.Hour)
		w.becomes(t, "conntrack: {min: 6}\nmetricsBindAddress: 127.0.0.1:99\n", 1,
			`level=INFO msg="The configuration file was taken over" file=/etc/c.conf changed="metricsBindAddress: 127.0.0.1:10249 -> 127.0.0.1:99; conntrack.min: 5 -> 6"`)
		s := w.State()
		if s.InForce != w.applied[0] || s.InForce.Conntrack.Min != 6 || s.Refused != nil || s.RestartDue != nil {
			t.Errorf("state %+v", s)
		}
		if s.File != "/etc/c.conf" || s.LoadedAt.Sub(began) != time.Hour || s.Taken != 1 || s.Rejected != 0 || w.told != 1 {
			t.Errorf("state %+v, told %d times", s, w.told)
		}
		w.becomes(t, "conntrack:\n  min: 6 # the same in other words\nmetricsBindAddress: 127.0.0.1:99\n", 0)
		if w.State().Taken != 1 || w.told != 1 {
			t.Error("something was told although nothing changed")
		}
	})
}

// A file that is wrong changes nothing and is told once, with all that is wrong.
// The right one is taken over afterwards.
func TestBadFile(t *testing.T) {
	w := begin(t, "conntrack: {min: 5}\n")
	first := w.State().InForce
	const refused = `level=ERROR msg="The configuration file is refused, the old configuration stays in force" file=/etc/c.conf error=`
	bad := "conntrack: {min: -6}\noomScoreAdj: 2000\n"
	w.becomes(t, bad, 0, refused+`"configuration: 2 errors:\n  KubeProxyConfiguration.conntrack.min: Invalid value: -6: must be 0 or more (/etc/c.conf:3)`+
		`\n  KubeProxyConfiguration.oomScoreAdj: Invalid value: 2000: must be -1000 to 1000 (/etc/c.conf:4)"`)
	s := w.State()
	if s.InForce != first || s.Refused == nil || s.RefusedAt.Before(s.LoadedAt) || s.Rejected != 1 || s.Taken != 0 {
		t.Errorf("state %+v", s)
	}
	w.becomes(t, bad, 0) // looked at again, nothing new
	if again := w.State().RefusedAt; !again.Equal(s.RefusedAt) {
		t.Errorf("refused at %v, want the first time, %v", again, s.RefusedAt)
	}
	w.becomes(t, "", 0, refused+`"read --config: file does not exist"`)
	w.becomes(t, "conntrack: {min: 5}\n", 0, `level=INFO msg="The configuration file is accepted again" file=/etc/c.conf`)
	if s = w.State(); s.Refused != nil || s.Rejected != 2 || s.Taken != 1 || w.told != 3 {
		t.Errorf("state %+v, told %d times", s, w.told)
	}
	w.becomes(t, "oomScoreAdj: 2000\n", 0, refused+`"configuration: KubeProxyConfiguration.oomScoreAdj: Invalid value: 2000: must be -1000 to 1000 (/etc/c.conf:3)"`)
	w.becomes(t, "conntrack: {min: 7}\n", 1, `level=INFO msg="The configuration file was taken over" file=/etc/c.conf changed="conntrack.min: 5 -> 7"`)
}

// What needs a restart waits for it, is told once, and can be taken back.
func TestRestartDue(t *testing.T) {
	w := begin(t, "hostnameOverride: a\n")
	const waits = `level=WARN msg="The configuration file has changes that need a restart" file=/etc/c.conf waiting=`
	w.becomes(t, "hostnameOverride: b\noomScoreAdj: 1\n", 1,
		`level=INFO msg="The configuration file was taken over" file=/etc/c.conf changed="oomScoreAdj: -999 -> 1"`,
		waits+`"hostnameOverride: a -> b"`)
	s := w.State()
	if s.InForce.NodeName != "a" || s.InForce.OOMScoreAdj != 1 {
		t.Errorf("in force: %+v", s.InForce)
	}
	want := []config.Field{{Name: "hostnameOverride", Old: "a", New: "b"}}
	if diff := cmp.Diff(want, s.RestartDue); diff != "" {
		t.Errorf("due (-want +got):\n%s", diff)
	}
	w.becomes(t, "hostnameOverride: b\noomScoreAdj: 2\n", 1, // the other still waits, and was told
		`level=INFO msg="The configuration file was taken over" file=/etc/c.conf changed="oomScoreAdj: 1 -> 2"`)
	w.becomes(t, "oomScoreAdj: x\n", 0,
		`level=ERROR msg="The configuration file is refused, the old configuration stays in force" file=/etc/c.conf error="configuration: KubeProxyConfiguration.oomScoreAdj: Invalid value: \"x\": must be a whole number (/etc/c.conf:3)"`)
	if got := w.State().RestartDue; len(got) != 1 {
		t.Errorf("due while refused: %v", got)
	}
	w.becomes(t, "hostnameOverride: a\noomScoreAdj: 2\n", 0,
		`level=INFO msg="The configuration file is accepted again" file=/etc/c.conf`,
		`level=INFO msg="The configuration file has no changes any more that need a restart" file=/etc/c.conf`)
	if got := w.State().RestartDue; got != nil {
		t.Errorf("still due: %v", got)
	}
}

// A process that is told to stop in the middle has nothing to complain of.
func TestStopWhileApplying(t *testing.T) {
	w := begin(t, "oomScoreAdj: 1\n")
	ctx, stop := context.WithCancel(t.Context())
	first := w.State().InForce
	w.applying = stop
	w.text = "oomScoreAdj: 2\n"
	w.Check(ctx)
	if s := w.State(); w.out.Len() > 0 || s.Rejected != 0 || s.Taken != 0 || s.InForce != first {
		t.Errorf("state %+v, logged %s", s, &w.out)
	}
}

// What a flag says, no file takes away; warnings are told with the file that
// they are about.
func TestFlagsWin(t *testing.T) {
	w := begin(t, "oomScoreAdj: 1\n", "--oom-score-adj=5")
	w.becomes(t, "oomScoreAdj: 2\n", 0)
	w.becomes(t, "oomScoreAdj: 2\nconntrack: {min: 1}\nportRange: 1-2\n", 1,
		`level=WARN msg="portRange has no effect: only the mode userspace opened ports for Services; remove the field"`,
		`level=INFO msg="The configuration file was taken over" file=/etc/c.conf changed="conntrack.min: 131072 -> 1"`)
	if got := w.State().InForce.OOMScoreAdj; got != 5 {
		t.Errorf("oomScoreAdj %d", got)
	}
}

// Run takes over a file on disk when it changes, and one that changed before
// anybody watched.
func TestRun(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.conf")
	write(t, path, header+"oomScoreAdj: 1\n")
	set := pflag.NewFlagSet("sluice", pflag.ContinueOnError)
	flags := config.NewFlags(set)
	if err := set.Parse([]string{"--config=" + path}); err != nil {
		t.Fatal(err)
	}
	load := func() (*config.Config, []string, error) {
		return flags.Load(config.Env{Hostname: os.Hostname, ReadFile: config.ReadFile}, config.Options{Modes: []string{"nftables"}})
	}
	cfg, _, err := load()
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, header+"oomScoreAdj: 2\n")
	applied := make(chan int, 1)
	ctx, stop := context.WithCancel(t.Context())
	r := New(Options{
		File: path, Config: cfg, Load: load, Log: slog.New(slog.DiscardHandler),
		Apply: func(_ context.Context, _, next *config.Config) { applied <- next.OOMScoreAdj },
	})
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	if got := <-applied; got != 2 {
		t.Errorf("at start %d", got)
	}
	write(t, path, header+"oomScoreAdj: 3\n")
	if got := <-applied; got != 3 {
		t.Errorf("then %d", got)
	}
	stop()
	if err := <-done; err != nil {
		t.Errorf("Run returned %v", err)
	}
}

// Without a file there is nothing to do but wait.
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
