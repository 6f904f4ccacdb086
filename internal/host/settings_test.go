package host_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/host"
)

const (
	maximum  = "net.netfilter.nf_conntrack_max"
	hashsize = "/sys/module/nf_conntrack/parameters/hashsize"
	oom      = "/proc/self/oom_score_adj"
)

// table is the limit of tracked connections, and the size of the table for it.
func table(limit, buckets string) []host.Setting {
	return []host.Setting{
		{Name: maximum, Value: limit, HostOnly: true},
		{Name: hashsize, Value: buckets, AtLeast: true, HostOnly: true},
	}
}

// The limit by CPUs has a bound, which overrides the minimum only if the limit by CPUs is
// above the bound (S-293, S-294, S-295).
func TestTheSizeFollowsTheCPUs(t *testing.T) {
	for _, tc := range []struct {
		name         string
		perCore, min int
		cpus         int
		want         []host.Setting
	}{
		{"the minimum equals what four ask for", 32768, 131072, 4, table("131072", "32768")},
		{"one asks for less than the minimum", 32768, 131072, 1, table("131072", "32768")},
		{"sixteen", 32768, 131072, 16, table("524288", "131072")},
		{"as many as the bound", 32768, 131072, 32, table("1048576", "262144")},
		{"more than the bound", 32768, 131072, 64, table("1048576", "262144")},
		{"a minimum above the bound", 32768, 2000000, 4, table("2000000", "500000")},
		{"a minimum above the bound, and CPUs too", 32768, 2000000, 64, table("1048576", "262144")},
		{"no minimum", 100, 0, 3, table("300", "75")},
		{"as many CPUs and connections as can be said", 1<<31 - 1, 1<<31 - 1, 8192, table("1048576", "262144")},
		{"left alone, minimum and all", 0, 131072, 64, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &config.Config{Conntrack: config.Conntrack{MaxPerCore: tc.perCore, Min: tc.min}}
			got := host.Lasting(c, tc.cpus)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// Times are whole seconds; none leaves a setting as it is.
func TestTimeouts(t *testing.T) {
	c := &config.Config{Conntrack: config.Conntrack{
		TCPEstablished: 24 * time.Hour,
		TCPCloseWait:   3599*time.Second + 999*time.Millisecond,
		UDPStream:      time.Millisecond, // 0 would forget flows at once
		TCPBeLiberal:   true,
	}}
	want := []host.Setting{
		{Name: "net.netfilter.nf_conntrack_tcp_timeout_established", Value: "86400"},
		{Name: "net.netfilter.nf_conntrack_tcp_timeout_close_wait", Value: "3599"},
		{Name: "net.netfilter.nf_conntrack_udp_timeout_stream", Value: "1"},
		{Name: "net.netfilter.nf_conntrack_tcp_be_liberal", Value: "1"},
	}
	if diff := cmp.Diff(want, host.Lasting(c, 0)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	c = &config.Config{Conntrack: config.Conntrack{UDP: 90 * time.Second}}
	want = []host.Setting{{Name: "net.netfilter.nf_conntrack_udp_timeout", Value: "90"}}
	if diff := cmp.Diff(want, host.Lasting(c, 0)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// Settings includes those of this process; Lasting leaves them out.
func TestLastingSettings(t *testing.T) {
	c := &config.Config{OOMScoreAdj: -999, Conntrack: config.Conntrack{UDP: time.Minute}}
	lasting := []host.Setting{{Name: "net.netfilter.nf_conntrack_udp_timeout", Value: "60"}}
	serving := append(lasting, host.Setting{Name: oom, Value: "-999"})
	if diff := cmp.Diff(serving, host.Settings(c, 4)); diff != "" {
		t.Errorf("serving (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(lasting, host.Lasting(c, 4)); diff != "" {
		t.Errorf("lasting (-want +got):\n%s", diff)
	}
}
