//go:build linux

package deploy

import (
	"os"
	"testing"

	"github.com/spf13/pflag"

	"github.com/sluice-proxy/sluice/internal/config"
)

// The program takes the command and the configuration that the chart renders for each mode, without a warning.
func TestTheConfigurationOfEachMode(t *testing.T) {
	modes := []string{"nftables", "iptables", "ipvs", "ebpf", "userspace"}
	for _, mode := range modes {
		for _, more := range []string{"sysctls.enabled=false", "sysctls.enabled=true", "metrics.scrape=podMonitor"} {
			t.Run(mode+" with "+more, func(t *testing.T) {
				chart := template(t, "--set=config.clusterCIDR=10.244.0.0/16,config.mode="+mode, "--set="+more)
				text, _ := subObject(objects(t, chart)["ConfigMap sluice"], "data")["config.conf"].(string)
				pod := readDaemonSet(t, []byte(sources(chart)["daemonset.yaml"])).Spec.Template.Spec
				for _, c := range append(pod.InitContainers, pod.Containers...) {
					fs := pflag.NewFlagSet("sluice", pflag.ContinueOnError)
					flags := config.NewFlags(fs)
					must(t, fs.Parse(c.Command[1:]))
					cfg, warnings, err := flags.Load(config.Env{ReadFile: func(name string) ([]byte, error) {
						if name != "/etc/sluice/config.conf" {
							return nil, os.ErrNotExist
						}
						return []byte(text), nil
					}}, config.Options{Modes: modes})
					if err != nil || len(warnings) > 0 {
						t.Fatalf("%s: %v, %v in\n%s", c.Name, err, warnings, text)
					}
					if cfg.Mode != mode || cfg.InitOnly != (c.Name == "sysctls") {
						t.Errorf("%s: the mode is %s, --init-only is %v", c.Name, cfg.Mode, cfg.InitOnly)
					}
				}
			})
		}
	}
}
