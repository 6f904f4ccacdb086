package app

import (
	"bytes"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/metrics"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// load returns the configuration of a command line, as the program reads it.
func load(t testing.TB, args ...string) *config.Config {
	t.Helper()
	fs := pflag.NewFlagSet("sluice", pflag.ContinueOnError)
	flags := config.NewFlags(fs)
	// The flag keeps the score of the test process as it is.
	if err := fs.Parse(append([]string{"--oom-score-adj=0"}, args...)); err != nil {
		t.Fatal(err)
	}
	cfg, _, err := flags.Load(config.Env{
		Hostname: func() (string, error) { return "node-a", nil }, ReadFile: os.ReadFile,
	}, config.Options{Modes: Modes(Kinds())})
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// options returns options of a daemon without a log.
func options(t testing.TB, args ...string) Options {
	t.Helper()
	return Options{Config: load(t, args...), Kinds: Kinds(), Log: slog.New(slog.DiscardHandler)}
}

const webService = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  clusterIP: 10.96.0.80
  ports: [{port: 80}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-1
  namespace: default
  labels: {kubernetes.io/service-name: web}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.244.1.5]}]
`

// manifests writes a file of manifests and returns its path.
func manifests(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "manifests.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestEveryKindIsComplete(t *testing.T) {
	type id struct {
		mode string
		bind config.Bind
	}
	seen := map[id]bool{}
	for _, k := range Kinds() {
		if k.Mode == "" || k.Mode != k.Facts.Name || seen[id{k.Mode, k.Bind}] || k.Probe == nil || k.Open == nil ||
			k.Preview == nil || k.Owned == "" {
			t.Errorf("mode %q exists twice or is incomplete: %+v", k.Mode, k)
		}
		seen[id{k.Mode, k.Bind}] = true
	}
}

func TestPolicy(t *testing.T) {
	prefix := netip.MustParsePrefix
	primary := route.NodePortOptions{Primary: true}
	for _, tt := range []struct {
		name string
		args []string
		want route.Options
	}{
		{
			"by default no client is a pod and the primary address serves NodePorts", nil,
			route.Options{Detector: route.DetectorOptions{Kind: route.DetectClusterCIDR}, NodePorts: primary},
		},
		{
			"pods by their addresses",
			[]string{"--cluster-cidr=10.244.0.0/16,fd00::/64", "--masquerade-all"},
			route.Options{
				Detector: route.DetectorOptions{
					Kind: route.DetectClusterCIDR, CIDRs: []netip.Prefix{prefix("10.244.0.0/16"), prefix("fd00::/64")},
				},
				NodePorts: primary, MasqueradeAll: true,
			},
		},
		{
			"pods by the Node",
			[]string{"--detect-local-mode=NodeCIDR"},
			route.Options{Detector: route.DetectorOptions{Kind: route.DetectNodeCIDR}, NodePorts: primary},
		},
		{
			"pods behind a bridge",
			[]string{"--detect-local-mode=BridgeInterface", "--pod-bridge-interface=cni0"},
			route.Options{Detector: route.DetectorOptions{Kind: route.DetectBridge, Interface: "cni0"}, NodePorts: primary},
		},
		{
			"pods by the names of their interfaces",
			[]string{"--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=veth"},
			route.Options{
				Detector: route.DetectorOptions{Kind: route.DetectInterfacePrefix, Interface: "veth"}, NodePorts: primary,
			},
		},
		{
			"addresses for NodePorts",
			[]string{"--nodeport-addresses=10.0.0.0/8,localhost"},
			route.Options{
				Detector:  route.DetectorOptions{Kind: route.DetectClusterCIDR},
				NodePorts: route.NodePortOptions{Localhost: true, CIDRs: []netip.Prefix{prefix("10.0.0.0/8")}},
			},
		},
		{
			"a specific bind address",
			[]string{"--bind-address=192.0.2.1"},
			route.Options{
				Detector: route.DetectorOptions{Kind: route.DetectClusterCIDR}, NodePorts: primary,
				Primary: netip.MustParseAddr("192.0.2.1"),
			},
		},
		{
			"an unspecified bind address",
			[]string{"--bind-address=::"},
			route.Options{Detector: route.DetectorOptions{Kind: route.DetectClusterCIDR}, NodePorts: primary},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.want.Listeners = []route.Listener{
				{At: netip.MustParseAddrPort("0.0.0.0:10256"), Name: "health server (healthzBindAddress)"},
				{At: netip.MustParseAddrPort("127.0.0.1:10249"), Name: "metrics server (metricsBindAddress)"},
			}
			if tt.args != nil && tt.args[0] == "--bind-address=::" {
				tt.want.Listeners[0].At = netip.MustParseAddrPort("[::]:10256")
				tt.want.Listeners[1].At = netip.MustParseAddrPort("[::1]:10249")
			}
			tt.want.NodeName, tt.want.Families = "node-a", []route.Family{route.IPv6}
			o := Options{Config: load(t, tt.args...), Kinds: []plane.Kind{{Mode: "nftables"}}}
			got := o.policy([]route.Family{route.IPv6})
			if len(got.Detector.CIDRs) == 0 {
				got.Detector.CIDRs = nil
			}
			if len(got.NodePorts.CIDRs) == 0 {
				got.NodePorts.CIDRs = nil
			}
			same := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
			addr := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
			port := cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
			if diff := cmp.Diff(tt.want, got, same, addr, port); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestPreviewReportsProblems(t *testing.T) {
	var log bytes.Buffer
	o := options(t, "--manifests=-")
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	o.Stdin = strings.NewReader(webService + "---\n" + `
apiVersion: v1
kind: Service
metadata: {name: odd, namespace: default}
spec: {clusterIP: 10.96.0.999, ports: [{port: 80}]}
`)
	preview, err := Preview(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	plan := preview.Plan
	if !preview.Problems || preview.Services != 2 {
		t.Errorf("got %+v, want problems and 2 Services", preview)
	}
	if plan.Steps() == 0 || !strings.Contains(plan.String(), "10.96.0.80") {
		t.Errorf("the plan does not have the good Service:\n%s", plan)
	}
	for _, want := range []string{"Problem", "Service default/odd", "10.96.0.999"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, &log)
		}
	}
	if strings.Contains(log.String(), `=""`) {
		t.Errorf("the log has empty attributes:\n%s", &log)
	}
}

func TestOpenSource(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for _, tt := range []struct {
		name string
		args []string
		err  string // contained
	}{
		{"files", []string{"--manifests=.", "--manifests=-"}, ""},
		{"no such files", []string{"--manifests=nowhere"}, "nowhere: no such file"},
		{"a server", []string{"--master=http://192.0.2.1"}, ""},
		{"nothing", nil, "no API server is named"},
		{"no such kubeconfig", []string{"--kubeconfig=nowhere"}, `read kubeconfig "nowhere"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := options(t, tt.args...)
			o.Stdin = io.NopCloser(strings.NewReader(""))
			d := &daemon{o: o, store: cluster.NewStore(), metrics: metrics.New(metrics.Options{Mode: o.Config.Mode})}
			err := d.openSource()
			if tt.err == "" && err != nil {
				t.Fatal(err)
			}
			if tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("error %v, want %q in it", err, tt.err)
			}
		})
	}
}

func TestDefaultModeExists(t *testing.T) {
	if !slices.Contains(Modes(Kinds()), load(t).Mode) {
		t.Errorf("the default mode %q is not one of %v", load(t).Mode, Modes(Kinds()))
	}
}
