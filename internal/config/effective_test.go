package config

import (
	"encoding/json"
	"testing"

	"github.com/spf13/pflag"
)

// S-269 the configuration in force has its apiVersion and kind, and includes flags and defaults.
func TestEffectiveIsJSON(t *testing.T) {
	cfg, _, err := load(t, "", "--cluster-cidr=10.0.0.0/8")
	if err != nil {
		t.Fatal(err)
	}
	text := cfg.Effective()
	var got struct{ Kind, APIVersion, ClusterCIDR, HealthzBindAddress string }
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	want := got
	want.Kind, want.APIVersion = "KubeProxyConfiguration", "kubeproxy.config.k8s.io/v1alpha1"
	want.ClusterCIDR, want.HealthzBindAddress = "10.0.0.0/8", "0.0.0.0:10256"
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestValuesOfAllFlags(t *testing.T) {
	fs := pflag.NewFlagSet("sluice", pflag.ContinueOnError)
	f := NewFlags(fs)
	if err := fs.Parse([]string{"--cluster_cidr=10.0.0.0/8", "--v=4", "--storage-driver-password=secret"}); err != nil {
		t.Fatal(err)
	}
	values := f.Values()
	fs.VisitAll(func(flag *pflag.Flag) {
		if flag.Hidden {
			return
		}
		if got, ok := values[flag.Name]; !ok || got != flag.Value.String() {
			t.Errorf("--%s: got %q, want %q", flag.Name, got, flag.Value)
		}
		delete(values, flag.Name)
	})
	if len(values) > 0 {
		t.Errorf("values of flags that are not there: %v", values)
	}
}
