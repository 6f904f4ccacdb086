package config

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"

	"github.com/sluice-proxy/sluice/internal/route"
)

const header = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// compare leaves out the rendered text: the same settings may be written in two ways.
var compare = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmpopts.IgnoreUnexported(Config{}),
	cmpopts.EquateEmpty(),
}

// load parses the command line, with a file of that text if it is not empty.
func load(t *testing.T, file string, args ...string) (*Config, []string, error) {
	t.Helper()
	fs := pflag.NewFlagSet("sluice", pflag.ContinueOnError)
	f := NewFlags(fs)
	if file != "" {
		args = append(args, "--config=config.yaml")
	}
	if err := fs.Parse(args); err != nil {
		t.Fatalf("parse %q: %v", args, err)
	}
	env := Env{
		Hostname: func() (string, error) { return "Host-1\n", nil },
		ReadFile: func(name string) ([]byte, error) {
			if name != "config.yaml" {
				return nil, os.ErrNotExist
			}
			return []byte(file), nil
		},
	}
	return f.Load(env, Options{Modes: []string{"nftables", "iptables"}})
}

// mustLoad is load where nothing may go wrong and nothing be warned of.
func mustLoad(t *testing.T, file string, args ...string) *Config {
	t.Helper()
	cfg, warnings, err := load(t, file, args...)
	if err != nil {
		t.Fatalf("load %q: %v", args, err)
	}
	if len(warnings) > 0 {
		t.Errorf("warnings of %q: %q", args, warnings)
	}
	return cfg
}

func defaults() *Config {
	return &Config{
		Mode:        "nftables",
		NodeName:    "host-1",
		Client:      Client{ContentType: "application/vnd.kubernetes.protobuf", QPS: 5, Burst: 10},
		BindAddress: netip.IPv4Unspecified(),
		Healthz:     netip.MustParseAddrPort("0.0.0.0:10256"),
		Metrics:     netip.MustParseAddrPort("127.0.0.1:10249"),
		Detector:    route.DetectorOptions{Kind: route.DetectClusterCIDR},
		NodePorts:   route.NodePortOptions{Primary: true},

		EBPF: EBPF{Dir: "/sys/fs/bpf/sluice", ExemptCgroups: []string{"system.slice/systemd-resolved.service"}},

		MasqueradeMark: 0x4000,
		ExternalIPs:    true,
		SyncPeriod:     30 * time.Second,
		OOMScoreAdj:    -999,
		Conntrack:      Conntrack{MaxPerCore: 32768, Min: 131072, TCPEstablished: 24 * time.Hour, TCPCloseWait: time.Hour},
		Logging:        Logging{Format: "text", FlushFrequency: 5 * time.Second},
		ReloadJitter:   2 * time.Second,
	}
}

func TestNothingSaid(t *testing.T) {
	if diff := cmp.Diff(defaults(), mustLoad(t, ""), compare); diff != "" {
		t.Errorf("without flags (-want +got):\n%s", diff)
	}
	want := defaults()
	if diff := cmp.Diff(want, mustLoad(t, header), compare); diff != "" {
		t.Errorf("with an empty file (-want +got):\n%s", diff)
	}
}

// kubeadm writes every field, empty ones included, and means nothing by it.
func TestKubeadm(t *testing.T) {
	want := defaults()
	want.Client.Kubeconfig = "/var/lib/kube-proxy/kubeconfig.conf"
	want.Detector.CIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	if diff := cmp.Diff(want, mustLoad(t, read(t, "kubeadm.yaml")), compare); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// The reference shows the defaults, and every field.
func TestReference(t *testing.T) {
	text := read(t, "reference.yaml")
	want := defaults()
	want.Detector.CIDRs = []netip.Prefix{
		netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/56"),
	}
	want.FeatureGates = map[string]bool{"AllowServiceExternalIPs": true}
	want.Logging.VModule = []VModule{{Pattern: "loop*", Verbosity: 4}}
	if diff := cmp.Diff(want, mustLoad(t, text), compare); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	doc, err := decode("reference.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range leaves() {
		if !doc.sets(path) {
			t.Errorf("%s is not in the reference", path)
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
