package metrics

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
)

// What iptables-restore does and refuses; nothing of it is counted as another
// mode's.
func TestIPTablesCounts(t *testing.T) {
	m := newMetrics(modeIPTables)
	m.Rules(route.IPv4, "nat", 120, 120)
	m.Rules(route.IPv4, "filter", 9, 9)
	m.Rules(route.IPv6, "nat", 7, 7)
	m.Rules(route.IPv4, "nat", 121, 4)
	m.RestoreFailed(route.IPv6)
	m.PartialRestoreFailed(route.IPv4)
	m.PartialRestoreFailed(route.IPv4)
	m.Synced(proxy.Sync{Began: start, Apply: time.Second, Err: errors.New("refused")})
	compare(t, values(t, m, "kubeproxy_sync_proxy_rules_iptables_"), `
last{ip_family="IPv4", table="filter"} 9
last{ip_family="IPv4", table="nat"} 4
last{ip_family="IPv6", table="nat"} 7
partial_restore_failures_total{ip_family="IPv4"} 2
restore_failures_total{ip_family="IPv4"} 2
restore_failures_total{ip_family="IPv6"} 1
total{ip_family="IPv4", table="filter"} 9
total{ip_family="IPv4", table="nat"} 121
total{ip_family="IPv6", table="nat"} 7`)
	for _, s := range []*prometheus.CounterVec{m.nftablesSync, m.nftablesCleanup} {
		for _, f := range m.opt.Families {
			var counted dto.Metric
			if err := s.WithLabelValues(f.String()).Write(&counted); err != nil || counted.GetCounter().GetValue() != 0 {
				t.Errorf("counted %v as the mode nftables does (%v)", counted.GetCounter().GetValue(), err)
			}
		}
	}
	compare(t, values(t, m, "sluice_apply_failures"), "_total{} 1")
}

// What rules count is there only where it can be read, and only in the mode that
// has those rules.
func TestAccounting(t *testing.T) {
	for _, test := range []struct {
		name string
		m    *Metrics
		want string
	}{
		{"all can be read", wired(modeIPTables), `
ct_state_invalid_dropped_packets_total{} 8
localhost_nodeports_accepted_packets_total{} 6`},
		{"another mode", wired(modeNFTables), ""},
		{"a kernel without nfacct", newMetrics(modeIPTables), ""},
	} {
		t.Run(test.name, func(t *testing.T) { compare(t, values(t, test.m, "kubeproxy_iptables_"), test.want) })
	}

	m, there := newMetrics(modeIPTables), false
	none := func() (uint64, bool) { return 0, there }
	m.Read(Readings{InvalidDropped: none, LoopbackNodePorts: none})
	exposed := func() string {
		return shape(slices.DeleteFunc(gather(t, m.registry), func(f *dto.MetricFamily) bool {
			return !strings.HasPrefix(f.GetName(), "kubeproxy_iptables_")
		}))
	}
	if got := exposed(); got != "" {
		t.Errorf("what cannot be read has series:\n%s", got)
	}
	there = true
	if got := exposed(); strings.Count(got, "{}") != 2 {
		t.Errorf("what counted nothing yet has no series:\n%s", got)
	}
}
