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
			return listen.Door{NetNS: netns}.Dial(ctx, network, addr)
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

// daemonWith runs a daemon with a configuration file, and returns how it is asked
// to compare.
func daemonWith(t *testing.T, path string, args ...string) (r *running, netns int, hangup chan<- os.Signal) {
	t.Helper()
	o, asks := daemonOptions(t, path, args...)
	o.NetNS = kerneltest.Namespace(t)
	return run(t, o), o.NetNS, asks
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
	r, netns, _ := daemonWith(t, path, "--manifests="+manifests(t, webService))
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

// A changed file holds at once; what cannot waits and is told; a wrong one
// changes nothing.
func TestAChangedConfigurationHolds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	write(t, path, quiet)
	r, netns, hangup := daemonWith(t, path, "--manifests="+manifests(t, webService))
	r.sync()

	write(t, path, quiet+"clusterCIDR: 10.244.0.0/16\nmetricsBindAddress: 127.0.0.1:10250\nmode: nftables\nhostnameOverride: other\n")
	if s := r.sync(); s.Cause != proxy.Configuration || s.Steps == 0 {
		t.Errorf("after a change of the configuration %+v, want it written", s)
	}
	if rules := runNft(t, netns, "list", "set", "ip", "sluice", "pod-cidrs"); !strings.Contains(rules, "10.244.0.0/16") {
		t.Errorf("pods are not known by the new clusterCIDR:\n%s", rules)
	}
	eventually(t, func() bool {
		code, body := get(t, netns, "127.0.0.1:10250/metrics")
		return code == 200 && strings.Contains(body, "sluice_restart_due 1\n") && strings.Contains(body, `sluice_config_reloads_total{result="ok"} 1`)
	})

	write(t, path, quiet+"clusterCIDR: 10.244.0.0/99\n")
	eventually(t, func() bool {
		_, body := get(t, netns, "127.0.0.1:10250/metrics")
		return strings.Contains(body, `sluice_config_reloads_total{result="refused"} 1`)
	})
	if len(r.syncs) > 0 {
		t.Errorf("a wrong file led to %+v", <-r.syncs)
	}
	if _, said := get(t, netns, "127.0.0.1:10250/statusz"); !strings.Contains(said, "s ago: configuration: ") {
		t.Errorf("the status does not say when and why a file was refused:\n%s", said)
	}
	_, body := get(t, netns, "127.0.0.1:10250/configz")
	var shown map[string]map[string]any
	if err := json.Unmarshal([]byte(body), &shown); err != nil || shown["kubeproxy.config.k8s.io"]["clusterCIDR"] != "10.244.0.0/16" {
		t.Errorf("in force is (%v):\n%s", err, body)
	}

	hangup <- os.Interrupt // any signal
	if s := r.sync(); s.Cause != proxy.Request || s.Steps != 0 {
		t.Errorf("on request %+v, want a comparison that finds nothing", s)
	}
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
