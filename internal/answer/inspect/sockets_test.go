package inspect

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// People get a table of the sockets of a filter, wide with pools and connections; programs get objects.
func TestAddresses(t *testing.T) {
	web, dns := cluster.Name{Namespace: "default", Name: "web"}, cluster.Name{Namespace: "kube-system", Name: "dns"}
	i := New(Options{Opened: plane.Opened{Sockets: func() []plane.Socket {
		return []plane.Socket{
			{Service: web, Port: "http", Protocol: cluster.TCP, At: netip.MustParseAddrPort("169.254.73.1:53493"), Open: 12},
			{
				Service: web, Port: "http", Protocol: cluster.TCP, Pool: route.Local,
				At: netip.MustParseAddrPort("169.254.73.1:41000"), Open: 12,
			},
			{Service: dns, Protocol: cluster.UDP, At: netip.MustParseAddrPort("[::1]:8053")},
		}
	}}})
	for _, c := range []struct {
		filter Filter
		wide   bool
		want   string
	}{
		{Filter{}, false, "NAMESPACE    NAME  PORT      LISTENS-AT\n" +
			"default      web   http/tcp  169.254.73.1:53493\n" +
			"default      web   http/tcp  169.254.73.1:41000\n" +
			"kube-system  dns   udp       [::1]:8053\n"},
		{Filter{Name: "web"}, true, "NAMESPACE  NAME  PORT      LISTENS-AT          POOL     CONNECTIONS\n" +
			"default    web   http/tcp  169.254.73.1:53493  cluster  12\n" +
			"default    web   http/tcp  169.254.73.1:41000  local    12\n"},
	} {
		if got := tabulate(must(i.Addresses(t.Context(), c.filter)), c.wide); got != c.want {
			t.Errorf("%+v:\n%s\nwant\n%s", c.filter, got, c.want)
		}
	}
	dnsOnly, err := i.Addresses(t.Context(), Filter{Namespace: "kube-system"})
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"namespace":"kube-system","service":"dns","protocol":"udp","pool":"cluster",` +
		`"address":"[::1]:8053","openConnections":0}`
	for a := range dnsOnly {
		if got, err := json.Marshal(a); string(got) != want || err != nil {
			t.Errorf("as JSON %s, %v, want %s", got, err, want)
		}
	}
}

// In a mode without sockets, the answer says where to look.
func TestAddressesWithoutSockets(t *testing.T) {
	const want = "in this mode the proxy opens no sockets for Services; sluice get services lists their addresses"
	if _, err := New(Options{}).Addresses(t.Context(), Filter{}); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
