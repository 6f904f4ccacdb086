package app

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// A daemon answers with its rules, its settings and its Events, in each mode.
func TestEvidenceOfADaemon(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables", "userspace", "ebpf"} {
		o := options(t, "--proxy-mode="+mode, "--manifests="+manifests(t, webService))
		o.NetNS, o.Flags = kerneltest.Namespace(t), map[string]string{"proxy-mode": mode}
		if mode != "nftables" {
			commands(t, o.NetNS, "iptables-nft -t mangle -N KUBE-IPTABLES-HINT")
		}
		r := run(t, o)
		r.sync()
		r.drain()
		client := admin.Dial(admin.Options{NetNS: o.NetNS})
		plan, err := admin.All[inspect.Step](client.Ask(t.Context(), "/plan", nil))
		if err != nil || !strings.Contains(fmt.Sprint(plan), "10.96.0.80") {
			t.Errorf("%s: the plan is %+v, %v", mode, plan, err)
		}
		var settings struct {
			Configuration struct{ Mode string }
			Flags         map[string]string
		}
		if err := client.Get(t.Context(), "/settings", nil, &settings); err != nil || settings.Configuration.Mode != mode ||
			settings.Flags["proxy-mode"] != mode {
			t.Errorf("%s: the settings are %+v, %v", mode, settings, err)
		}
		events, err := admin.All[inspect.Event](client.Ask(t.Context(), "/events", nil))
		if err != nil || len(events) == 0 || events[0].Reason != "Starting" {
			t.Errorf("%s: the Events are %+v, %v", mode, events, err)
		}
		diff, err := admin.All[inspect.Step](client.Ask(t.Context(), "/diff", nil))
		if err != nil || len(diff) != 0 {
			t.Errorf("%s: after a plan the kernel differs: %+v, %v", mode, diff, err)
		}
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	}
}

// The plan of very many Services would take the memory of the daemon.
func TestAPlanHasALimit(t *testing.T) {
	var many strings.Builder
	for i := range maxPlanned + 1 {
		fmt.Fprintf(&many, "---\napiVersion: v1\nkind: Service\nmetadata: {name: s%d, namespace: default}\nspec: "+
			"{clusterIP: 10.96.%d.%d, ports: [{port: 80}]}\n", i, i/200, i%200+1)
	}
	o := options(t, "--manifests="+manifests(t, many.String()))
	o.NetNS = kerneltest.Namespace(t)
	r := run(t, o)
	r.sync()
	r.drain()
	err := admin.Dial(admin.Options{NetNS: o.NetNS}).Get(t.Context(), "/plan", nil, nil)
	if err == nil ||
		!strings.Contains(err.Error(), "there are 1001 Services, and the plan of more than 1000 takes too much memory") {
		t.Errorf("error %v", err)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}
