package localnet

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/internal/route"
)

type sysctl struct {
	values map[string]string
	err    error
}

func (s sysctl) Set(key, value string) error {
	s.values[key] = value
	return s.err
}

func change(old *route.Host, addrs ...string) route.Change {
	t := &route.Table{}
	for _, a := range addrs {
		t.Host.NodePorts.Addrs = append(t.Host.NodePorts.Addrs, netip.MustParseAddr(a))
	}
	return route.Change{Table: t, OldHost: old}
}

func TestOnlyWhereLoopbackServesNodePorts(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change route.Change
		want   string
	}{
		{"127.0.0.1 serves NodePorts", change(&route.Host{}, "127.0.0.1", "192.168.0.2"), "1"},
		{"only other addresses", change(&route.Host{}, "192.168.0.2"), ""},
		{"::1 has no such parameter", change(&route.Host{}, "::1"), ""},
		{"the host is as before", change(nil, "127.0.0.1"), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := sysctl{values: map[string]string{}}
			New(s, func(err error) { t.Error(err) }).Applied(tt.change)
			if got := s.values["net/ipv4/conf/all/route_localnet"]; got != tt.want {
				t.Errorf("route_localnet is %q, want %q", got, tt.want)
			}
		})
	}
}

func TestAFailureIsReported(t *testing.T) {
	var told error
	s := sysctl{values: map[string]string{}, err: errors.New("read-only")}
	New(s, func(err error) { told = err }).Applied(change(&route.Host{}, "127.0.0.1"))
	if !errors.Is(told, s.err) {
		t.Errorf("told %v, want %v", told, s.err)
	}
}
