package app

import (
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/health"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/kernelspace"
	"github.com/sluice-proxy/sluice/internal/testing/hnstest"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

// windows returns options of a daemon in mode kernelspace, with an HNS in memory in place of the one of Windows.
func windows(t *testing.T, fake *hnstest.Fake, args ...string) Options {
	t.Helper()
	kinds := []plane.Kind{kernelspace.Kind(fake, nil)}
	fs := pflag.NewFlagSet("sluice", pflag.ContinueOnError)
	flags := config.NewFlags(fs)
	if err := fs.Parse(append([]string{"--oom-score-adj=0", "--conntrack-max-per-core=0"}, args...)); err != nil {
		t.Fatal(err)
	}
	cfg, _, err := flags.Load(config.Env{
		Hostname: func() (string, error) { return "node-a", nil }, ReadFile: os.ReadFile,
		Getenv: func(string) string { return "l2" },
	}, config.Options{Modes: Modes(kinds)})
	if err != nil {
		t.Fatal(err)
	}
	return Options{Config: cfg, Kinds: kinds, Log: slog.New(slog.DiscardHandler), NetNS: kerneltest.Namespace(t)}
}

// A daemon whose HNS network does not exist yet says so in its status and at /healthz, is alive, and
// serves as soon as there is one. What it wrote stays until a clean-up.
func TestTheNetworkOfWindowsIsAwaited(t *testing.T) {
	fake := hnstest.New(hns.Network{Name: "other", Type: hns.L2Bridge})
	o := windows(t, fake, "--manifests="+manifests(t, webService))
	if err := Prepare(t.Context(), o); err != nil {
		t.Error("--init-only:", err)
	}
	r := run(t, o)
	if first := <-r.syncs; !errors.Is(first.Err, hns.ErrNotFound) {
		t.Errorf("%+v", first)
	}
	r.drain()
	const waits = `HNS network \"l2\" does not exist: waiting for the CNI plugin`
	if code, body := get(t, o.NetNS, "127.0.0.1:10256/healthz"); code != 503 || !strings.Contains(body, waits) {
		t.Error(code, body)
	}
	if code, body := get(t, o.NetNS, "127.0.0.1:10256/livez"); code != 200 {
		t.Error(code, body)
	}
	if s := statusIn(t, o.NetNS); s.Health.State != health.Starting ||
		!strings.Contains(s.Health.Reason, "waiting for the CNI plugin") {
		t.Errorf("%+v", s.Health)
	}
	fake.AddNetwork(hns.Network{Name: "l2", Type: hns.L2Bridge})
	for end := time.Now().Add(testTimeout); ; time.Sleep(10 * time.Millisecond) {
		if s := statusIn(t, o.NetNS); s.Health.State == health.Healthy ||
			s.Health.Reason == "the Node is leaving the cluster, or unknown" {
			break
		} else if time.Now().After(end) {
			t.Fatalf("%+v", s)
		}
	}
	if code, body := get(t, o.NetNS, "127.0.0.1:10256/healthz"); strings.Contains(body, "waiting") {
		t.Error(code, body)
	}
	list, err := fake.LoadBalancers(t.Context())
	if err != nil || len(list) != 1 || list[0].VIP != netip.MustParseAddr("10.96.0.80") || list[0].Target != 8080 {
		t.Errorf("%+v, %v", list, err)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if list, err := fake.LoadBalancers(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("after the end: %+v, %v", list, err)
	}
	removed, err := Cleanup(t.Context(), o)
	if err != nil ||
		!strings.Contains(strings.Join(removed, "\n"), "removed sluice: 1 load balancer\nremoved sluice: 1 endpoint") {
		t.Error(removed, err)
	}
}

// statusIn asks the daemon of a network namespace for its status.
func statusIn(t *testing.T, netns int) (s inspect.Status) {
	t.Helper()
	if err := admin.Dial(admin.Options{NetNS: netns}).Get(t.Context(), "/status", nil, &s); err != nil {
		t.Fatal(err)
	}
	return s
}
