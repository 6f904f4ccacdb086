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
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/control"
	"github.com/sluice-proxy/sluice/internal/inspect"
	"github.com/sluice-proxy/sluice/internal/kernel/handover"
	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
	"github.com/sluice-proxy/sluice/internal/kernel/listen"
	"github.com/sluice-proxy/sluice/internal/proxy"
)

// get asks a server of the namespace.
func get(t testing.TB, netns int, url string) (code int, body string) {
	t.Helper()
	client := &http.Client{Timeout: patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return listen.Opener{NetNS: netns}.Dial(ctx, network, addr)
		},
	}}
	r, err := client.Get("http://" + url)
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

// daemonWith runs a daemon with a configuration file in a namespace of its own.
func daemonWith(t *testing.T, path string, args ...string) (r *running, netns int) {
	t.Helper()
	netns = kerneltest.Namespace(t)
	return daemonIn(t, netns, path, args...), netns
}

// daemonIn runs a daemon with a configuration file in a namespace.
func daemonIn(t testing.TB, netns int, path string, args ...string) *running {
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
	asks := make(chan os.Signal, 1)
	o = options(t)
	o.Config = cfg
	o.Load, o.File, o.Compare, o.Flags = read, path, asks, flags.Values()
	o.Reason, o.Version = "a test names it", "v1.2.3"
	return o, asks
}

const quiet = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
conntrack: {maxPerCore: 0}
`

func TestWhatADaemonServes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	write(t, path, quiet)
	r, netns := daemonWith(t, path, "--manifests="+manifests(t, webService))
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
		{"127.0.0.1:10249/metrics", 200, `sluice_mode_info{mode="nftables",reason="a test names it"} 1`},
		{"127.0.0.1:10249/metrics", 200, "sluice_services 1\n"},
		{"127.0.0.1:10249/metrics", 200, "kubeproxy_sync_proxy_rules_service_changes_total 1\n"},
		{"127.0.0.1:10249/configz", 200, `"maxPerCore":0`},
		{"127.0.0.1:10249/flagz", 200, "config=" + path},
		{"127.0.0.1:10249/statusz", 200, "Sluice v1.2.3, pid "},
		{"127.0.0.1:10249/statusz", 200, "nf_conntrack_tcp_timeout_close_wait"},
		{"127.0.0.1:10249/debug/pprof/", 404, ""},
	} {
		if code, body := get(t, netns, tt.url); code != tt.code || !strings.Contains(body, tt.has) {
			t.Errorf("%s: %d, want %d and in it %q:\n%s", tt.url, code, tt.code, tt.has, body)
		}
	}
	var s inspect.Status
	if err := control.Dial(control.Options{NetNS: netns}).Get(t.Context(), "/status", nil, &s); err != nil {
		t.Fatal(err)
	}
	if s.Health.State != inspect.Healthy || s.Counts.Services != 1 || s.Mode.Name != "nftables" || s.PID != os.Getpid() {
		t.Errorf("status %+v", s)
	}
	var d inspect.Difference
	if err := control.Dial(control.Options{NetNS: netns}).Get(t.Context(), "/diff", nil, &d); err != nil || d.Steps != 0 {
		t.Errorf("differs by %+v (%v), want nothing", d, err)
	}
}

// A second daemon touches nothing, and says who is there.
func TestOneDaemonForANamespace(t *testing.T) {
	o := options(t, "--manifests="+manifests(t, webService))
	o.NetNS = kerneltest.Namespace(t)
	r := run(t, o)
	r.sync()
	before := runNft(t, o.NetNS, "list", "ruleset")
	other := options(t, "--manifests="+manifests(t, strings.ReplaceAll(webService, "10.96.0.80", "10.96.0.81")))
	other.NetNS = o.NetNS
	err := Run(t.Context(), other)
	if taken, ok := errors.AsType[*control.TakenError](err); !ok || taken.Holder == nil || taken.Holder.PID != os.Getpid() {
		t.Errorf("a second daemon ended with %v, want the first named", err)
	}
	if after := runNft(t, o.NetNS, "list", "ruleset"); after != before {
		t.Errorf("a second daemon changed the rules:\n%s\nwant\n%s", after, before)
	}
}

// reloading is a daemon that is replaced by another one in this process whenever
// its configuration changes, as the program does.
type reloading struct {
	*running
	o    Options
	next chan *handover.Handover
}

func reloadingWith(t *testing.T, path string, args ...string) (r *reloading, hangup chan<- os.Signal) {
	t.Helper()
	o, asks := daemonOptions(t, path, append(args, "--reload-jitter=0")...)
	o.NetNS = kerneltest.Namespace(t)
	r = &reloading{o: o, next: make(chan *handover.Handover, 1)}
	r.o.Replace = func(h *handover.Handover) { r.next <- h }
	r.running = run(t, r.o)
	return r, asks
}

// again waits for the daemon to be replaced, and replaces it.
func (r *reloading) again(t *testing.T) {
	t.Helper()
	select {
	case r.o.Before = <-r.next:
	case <-time.After(patience):
		t.Fatal("the changed file has no effect")
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	var err error
	if r.o.Config, _, err = r.o.Load(); err != nil {
		t.Fatal(err)
	}
	r.running = run(t, r.o)
}

// A changed file takes effect with another run of the daemon, which has the lock
// and the ports of the one before; a wrong one changes nothing.
func TestAChangedConfigurationHolds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	write(t, path, quiet)
	r, hangup := reloadingWith(t, path, "--manifests="+manifests(t, webService))
	netns := r.o.NetNS
	r.sync()

	write(t, path, quiet+"clusterCIDR: 10.244.0.0/16\nmetricsBindAddress: 127.0.0.1:10250\nhostnameOverride: other\n")
	r.again(t)
	if s := r.sync(); s.Cause != proxy.Start || s.Steps == 0 || s.Adopted == 0 {
		t.Errorf("after a change of the configuration %+v, want some of it written", s)
	}
	if rules := runNft(t, netns, "list", "set", "ip", "sluice", "pod-cidrs"); !strings.Contains(rules, "10.244.0.0/16") {
		t.Errorf("pods are not known by the new clusterCIDR:\n%s", rules)
	}
	eventually(t, func() bool {
		code, body := get(t, netns, "127.0.0.1:10250/metrics")
		return code == 200 && strings.Contains(body, `sluice_config_reloads_total{result="ok"} 1`)
	})

	write(t, path, quiet+"clusterCIDR: 10.244.0.0/16\nmetricsBindAddress: 127.0.0.1:10250\nclientConnection: {qps: 7}\nhostnameOverride: other\n")
	hangup <- os.Interrupt // any signal
	r.again(t)
	if s := r.sync(); s.Steps != 0 {
		t.Errorf("after a change that concerns no rule %+v, want nothing written", s)
	}

	for text, why := range map[string]string{
		"clusterCIDR: 10.244.0.0/99\n":                                   "clusterCIDR",
		"healthzBindAddress: 192.0.2.1:10257\n":                          "cannot assign requested address",
		"clientConnection: {kubeconfig: /nowhere.conf}\nmode: nowhere\n": "nowhere",
	} {
		write(t, path, quiet+text)
		eventually(t, func() bool {
			_, said := get(t, netns, "127.0.0.1:10250/statusz")
			return strings.Contains(said, "not in force: the file as read ") && strings.Contains(said, why)
		})
	}
	if len(r.syncs)+len(r.next) > 0 {
		t.Error("a wrong file had an effect")
	}
	if _, body := get(t, netns, "127.0.0.1:10250/metrics"); !strings.Contains(body, `sluice_config_reloads_total{result="refused"} 3`) ||
		!strings.Contains(body, `sluice_config_reloads_total{result="ok"} 2`) {
		t.Errorf("reloads are not counted:\n%s", body)
	}
	_, body := get(t, netns, "127.0.0.1:10250/configz")
	var shown map[string]map[string]any
	if err := json.Unmarshal([]byte(body), &shown); err != nil || shown["kubeproxy.config.k8s.io"]["clusterCIDR"] != "10.244.0.0/16" {
		t.Errorf("in force is (%v):\n%s", err, body)
	}

	hangup <- os.Interrupt
	if s := r.sync(); s.Cause != proxy.Request || s.Steps != 0 {
		t.Errorf("on request %+v, want a comparison that finds nothing", s)
	}
}

// What is read from a pipe is gone when it is read: the process does not start
// anew while it knows more than a start could read.
func TestNoReloadThatLosesServices(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	write(t, path, quiet)
	o, asks := daemonOptions(t, path, "--manifests=-", "--reload-jitter=0")
	o.NetNS, o.Stdin = kerneltest.Namespace(t), strings.NewReader(webService)
	o.Replace = func(*handover.Handover) { t.Error("it starts anew") }
	r := run(t, o)
	r.sync()
	write(t, path, quiet+"clusterCIDR: 10.244.0.0/16\n")
	asks <- os.Interrupt
	eventually(t, func() bool {
		_, said := get(t, o.NetNS, "127.0.0.1:10249/statusz")
		return strings.Contains(said, "a new start could not read all Services again: - can be read once only")
	})
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never holds")
		}
	}
}
