package localnet

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/route"
)

type sysctl struct {
	value string
	err   error
}

func (s *sysctl) Get(string) (string, error) { return s.value, nil }

func (s *sysctl) Set(_, value string) error {
	if s.err == nil {
		s.value = value
	}
	return s.err
}

func host(addrs ...string) *route.Host {
	var h route.Host
	for _, a := range addrs {
		h.NodePorts.Addrs = append(h.NodePorts.Addrs, netip.MustParseAddr(a))
	}
	return &h
}

func TestTheParameterFollowsTheNodePorts(t *testing.T) {
	with, without := host("127.0.0.1", "192.168.0.2"), host("192.168.0.2", "::1")
	for _, tt := range []struct {
		name   string
		value  string
		hosts  []*route.Host // one after the other; nil: a change of services only
		want   string
		report string
	}{
		{"127.0.0.1 serves NodePorts", "0", []*route.Host{with}, "1", ""},
		{"only other addresses do", "0", []*route.Host{without}, "0", ""},
		{"they come to be served there", "0", []*route.Host{without, with}, "1", ""},
		{"and no longer are", "0", []*route.Host{with, without}, "0", ""},
		{"services change", "0", []*route.Host{with, nil, nil}, "1", ""},
		{"found on at the start, and needed", "1", []*route.Host{with}, "1", ""},
		{"found on at the start, and not needed", "1", []*route.Host{without, nil}, "1", "neighbours can reach"},
		{"somebody switches it on later", "1", []*route.Host{with, nil}, "1", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &sysctl{value: tt.value}
			told := ""
			f := New(s, func(err error) { told += err.Error() })
			now := &route.Host{}
			for _, h := range tt.hosts {
				c := route.Change{Table: &route.Table{Host: *now}}
				if h != nil {
					c.OldHost, c.Table.Host, now = now, *h, h
				}
				f.Applied(c)
			}
			if s.value != tt.want {
				t.Errorf("route_localnet is %q, want %q", s.value, tt.want)
			}
			if !strings.Contains(told, tt.report) || (told != "") != (tt.report != "") {
				t.Errorf("told %q, want %q", told, tt.report)
			}
		})
	}
}

func TestAFailureIsReported(t *testing.T) {
	var told error
	s := &sysctl{value: "0", err: errors.New("read-only")}
	New(s, func(err error) { told = err }).Applied(route.Change{Table: &route.Table{Host: *host("127.0.0.1")}, OldHost: host()})
	if !errors.Is(told, s.err) {
		t.Errorf("told %v, want %v", told, s.err)
	}
}
