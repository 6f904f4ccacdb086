package app

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/handover"
	"github.com/sluice-proxy/sluice/internal/handover/listen"
	"github.com/sluice-proxy/sluice/internal/health"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// get sends a request to a server in the namespace.
func get(t testing.TB, netns int, url string) (code int, body string) {
	t.Helper()
	client := &http.Client{Timeout: testTimeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return listen.Opener{NetNS: netns}.Dial(ctx, network, addr)
		},
	}}
	r, err := client.Get("http://" + url)
	for end := time.Now().Add(testTimeout); errors.Is(err, syscall.ECONNREFUSED) && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond) // the server of a daemon that has just started may not listen yet
		r, err = client.Get("http://" + url)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(text)
}

// daemonWith runs a daemon with a configuration file in a new namespace.
func daemonWith(t *testing.T, path string, args ...string) (r *testDaemon, netns int) {
	t.Helper()
	netns = kerneltest.Namespace(t)
	return daemonIn(t, netns, path, args...), netns
}

// daemonIn runs a daemon with a configuration file in a namespace.
func daemonIn(t testing.TB, netns int, path string, args ...string) *testDaemon {
	t.Helper()
	o, _ := daemonOptions(t, path, args...)
	o.NetNS = netns
	return run(t, o)
}

func daemonOptions(t testing.TB, path string, args ...string) (o Options, hangup chan<- os.Signal) {
	t.Helper()
	fs := pflag.NewFlagSet("sluice", pflag.ContinueOnError)
	flags := config.NewFlags(fs)
	if err := fs.Parse(append(args, "--config="+path, "--oom-score-adj=0")); err != nil {
		t.Fatal(err)
	}
	read := func() (*config.Config, []string, error) {
		return flags.Load(config.Env{
			Hostname: func() (string, error) { return "node-a", nil }, ReadFile: os.ReadFile,
		}, config.Options{Modes: Modes(Kinds())})
	}
	cfg, _, err := read()
	if err != nil {
		t.Fatal(err)
	}
	signals := make(chan os.Signal, 1)
	o = options(t)
	o.Config = cfg
	o.Load, o.File, o.Compare, o.Flags = read, path, signals, flags.Values()
	o.Reason, o.Version = "chosen by the test", "v1.2.3"
	return o, signals
}

const quiet = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
conntrack: {maxPerCore: 0}
`

func TestServersOfADaemon(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	write(t, path, quiet)
	const scheduler = "{annotations: {sluice-proxy.github.io/scheduler: sh}, name: web"
	hashed := strings.Replace(webService, "{name: web", scheduler, 1)
	r, netns := daemonWith(t, path, "--manifests="+manifests(t, hashed))
	r.sync()
	for _, tt := range []struct {
		url  string
		code int
		has  string
	}{
		{"127.0.0.1:10256/healthz", 200, `"healthy":true`},
		{"127.0.0.1:10256/livez", 200, `"healthy":true`},
		{"127.0.0.1:10256/metrics", 404, ""},
		{"127.0.0.1:10249/proxyMode", 200, "nftables"},
		{
			"127.0.0.1:10249/metrics", 200,
			`sluice_mode_info{configured="nftables",mode="nftables",reason="chosen by the test"} 1`,
		},
		{"127.0.0.1:10249/metrics", 200, "sluice_services 1\n"},
		{"127.0.0.1:10249/metrics", 200, "sluice_hash_tables 1\n"},
		{"127.0.0.1:10249/statusz", 200, "Hash tables "},
		{"127.0.0.1:10249/metrics", 200, "kubeproxy_sync_proxy_rules_service_changes_total 1\n"},
		{"127.0.0.1:10249/configz", 200, `"maxPerCore":0`},
		{"127.0.0.1:10249/flagz", 200, "config=" + path},
		{"127.0.0.1:10249/statusz", 200, "Sluice v1.2.3, pid "},
		{"127.0.0.1:10249/statusz", 200, "nf_conntrack_tcp_timeout_close_wait"},
		{"127.0.0.1:10249/debug/pprof/", 404, ""},
	} {
		if code, body := get(t, netns, tt.url); code != tt.code || !strings.Contains(body, tt.has) {
			t.Errorf("%s: code %d, want %d and %q in the body:\n%s", tt.url, code, tt.code, tt.has, body)
		}
	}
	var s inspect.Status
	if err := admin.Dial(admin.Options{NetNS: netns}).Get(t.Context(), "/status", nil, &s); err != nil {
		t.Fatal(err)
	}
	if s.Health.State != health.Healthy || s.Counts.Services != 1 || s.Mode.Name != "nftables" || s.PID != os.Getpid() {
		t.Errorf("status %+v", s)
	}
	d, err := admin.All[inspect.Step](admin.Dial(admin.Options{NetNS: netns}).Ask(t.Context(), "/diff", nil))
	if err != nil || len(d) != 0 {
		t.Errorf("difference %+v (%v), want none", d, err)
	}
}

// A second daemon changes nothing, and reports the first one.
func TestOneDaemonForANamespace(t *testing.T) {
	o := options(t, "--manifests="+manifests(t, webService))
	o.NetNS = kerneltest.Namespace(t)
	// Without other modes, whose probes the first daemon would run meanwhile to remove leftovers.
	o.Kinds = slices.DeleteFunc(o.Kinds, func(k plane.Kind) bool { return k.Mode != "nftables" })
	r := run(t, o)
	r.sync()
	before := runNft(t, o.NetNS, "list", "ruleset")
	other := options(t, "--manifests="+manifests(t, strings.ReplaceAll(webService, "10.96.0.80", "10.96.0.81")))
	other.NetNS = o.NetNS
	err := Run(t.Context(), other)
	if taken, ok := errors.AsType[*admin.TakenError](err); !ok || taken.Holder == nil || taken.Holder.PID != os.Getpid() {
		t.Errorf("a second daemon ended with %v, want the first as the holder", err)
	}
	if after := runNft(t, o.NetNS, "list", "ruleset"); after != before {
		t.Errorf("a second daemon changed the rules:\n%s\nwant\n%s", after, before)
	}
}

// reloadingDaemon is a daemon that is replaced by another one in this process when its
// configuration changes, like the real program.
type reloadingDaemon struct {
	*testDaemon
	o    Options
	next chan *handover.Handover
}

func startReloading(t *testing.T, path string, args ...string) (r *reloadingDaemon, hangup chan<- os.Signal) {
	t.Helper()
	o, hangup := daemonOptions(t, path, append(args, "--reload-jitter=0")...)
	o.NetNS = kerneltest.Namespace(t)
	r = &reloadingDaemon{o: o, next: make(chan *handover.Handover, 1)}
	r.o.Replace = func(h *handover.Handover) { r.next <- h }
	r.testDaemon = run(t, r.o)
	return r, hangup
}

// waitForReload waits until the daemon requests its replacement, and starts that.
func (r *reloadingDaemon) waitForReload(t *testing.T) {
	t.Helper()
	select {
	case r.o.Before = <-r.next:
	case <-time.After(testTimeout):
		t.Fatal("the changed file has no effect")
	}
	if err := errors.Join(r.stop(), r.o.Before.Finish()); err != nil {
		t.Fatal(err)
	}
	var err error
	if r.o.Config, _, err = r.o.Load(); err != nil {
		t.Fatal(err)
	}
	r.testDaemon = run(t, r.o)
}

// A changed file takes effect with a new run of the daemon, which keeps the lock and the
// ports of the previous run. An invalid file changes nothing.
func TestAChangedConfigurationTakesEffect(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	write(t, path, quiet)
	r, hangup := startReloading(t, path, "--manifests="+manifests(t, webService))
	netns := r.o.NetNS
	r.sync()

	write(t, path, quiet+"clusterCIDR: 10.244.0.0/16\nmetricsBindAddress: 127.0.0.1:10250\nhostnameOverride: other\n")
	r.waitForReload(t)
	if s := r.sync(); s.Cause != proxy.Start || s.Steps == 0 || s.Adopted == 0 {
		t.Errorf("after a change of the configuration the first write is %+v, want changes and adopted entries", s)
	}
	if rules := runNft(t, netns, "list", "set", "ip", "sluice", "pod-cidrs"); !strings.Contains(rules, "10.244.0.0/16") {
		t.Errorf("the new clusterCIDR is not in the set:\n%s", rules)
	}
	eventually(t, func() bool {
		code, body := get(t, netns, "127.0.0.1:10250/metrics")
		return code == 200 && strings.Contains(body, `sluice_config_reloads_total{result="ok"} 1`)
	})

	write(t, path, quiet+"clusterCIDR: 10.244.0.0/16\nmetricsBindAddress: 127.0.0.1:10250\n"+
		"clientConnection: {qps: 7}\nhostnameOverride: other\n")
	hangup <- os.Interrupt // any signal
	r.waitForReload(t)
	if s := r.sync(); s.Steps != 0 {
		t.Errorf("after a change that affects no rule the first write is %+v, want no steps", s)
	}

	for text, why := range map[string]string{
		"clusterCIDR: 10.244.0.0/99\n":                                   "clusterCIDR",
		"healthzBindAddress: 192.0.2.1:10257\n":                          "cannot assign requested address",
		"clientConnection: {kubeconfig: /nowhere.conf}\nmode: nowhere\n": "nowhere",
	} {
		write(t, path, quiet+text)
		eventually(t, func() bool {
			_, page := get(t, netns, "127.0.0.1:10250/statusz")
			return strings.Contains(page, "not in force: the file as read ") && strings.Contains(page, why)
		})
	}
	if len(r.syncs)+len(r.next) > 0 {
		t.Error("an invalid file took effect")
	}
	const refused = `sluice_config_reloads_total{result="refused"} 3`
	const accepted = `sluice_config_reloads_total{result="ok"} 2`
	_, body := get(t, netns, "127.0.0.1:10250/metrics")
	if !strings.Contains(body, refused) || !strings.Contains(body, accepted) {
		t.Errorf("reloads are not counted:\n%s", body)
	}
	_, body = get(t, netns, "127.0.0.1:10250/configz")
	var shown map[string]map[string]any
	if err := json.Unmarshal([]byte(body), &shown); err != nil ||
		shown["kubeproxy.config.k8s.io"]["clusterCIDR"] != "10.244.0.0/16" {
		t.Errorf("the configuration in force is (%v):\n%s", err, body)
	}

	hangup <- os.Interrupt
	if s := r.sync(); s.Cause != proxy.Request || s.Steps != 0 {
		t.Errorf("a request led to %+v, want a comparison without steps", s)
	}
}

// Manifests from a pipe can be read only once. The process does not restart if a new run
// could not read all Services again.
func TestNoReloadIfServicesWouldBeLost(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	write(t, path, quiet)
	o, hangup := daemonOptions(t, path, "--manifests=-", "--reload-jitter=0")
	o.NetNS, o.Stdin = kerneltest.Namespace(t), strings.NewReader(webService)
	o.Replace = func(*handover.Handover) { t.Error("the daemon restarts") }
	r := run(t, o)
	r.sync()
	write(t, path, quiet+"clusterCIDR: 10.244.0.0/16\n")
	hangup <- os.Interrupt
	eventually(t, func() bool {
		_, page := get(t, o.NetNS, "127.0.0.1:10249/statusz")
		return strings.Contains(page, "a new start could not read all Services again: /dev/stdin can be read once only")
	})
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(testTimeout); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the condition was never true")
		}
	}
}
