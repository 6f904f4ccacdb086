package hnstest

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"testing"

	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

func TestContract(t *testing.T) { Contract(t, New(ContractNetwork())) }

// The documents have the names and numbers of Microsoft's schema: "HNS JSON document schemas" of Microsoft Learn, and
// hcnloadbalancer.go, hcnendpoint.go and hcnpolicy.go of hnslib.
func TestDocuments(t *testing.T) {
	endpoint := hns.Endpoint{
		ID: "e1", Network: "n1", MAC: "02-11-0A-B4-01-07", Addrs: []netip.Addr{netip.MustParseAddr("10.180.1.7")},
		Provider: netip.MustParseAddr("192.168.0.3"), Remote: true,
	}
	balancer := hns.LoadBalancer{
		ID: "l1", VIP: netip.MustParseAddr("172.30.0.41"), Protocol: 17, Port: 53, Target: 5353, Endpoints: []string{"e1"},
		SourceVIP: netip.MustParseAddr("10.180.0.2"), Flags: hns.Flags{DSR: true, LocalRouted: true, Affinity: true},
	}
	for text, doc := range map[string]any{
		`{"ID":"n1","Name":"pods","Type":"Overlay","Policies":[{"Type":"RemoteSubnetRoute",` +
			`"Settings":{"DestinationPrefix":"10.180.1.0/24",` +
			`"IsolationId":4096,"ProviderAddress":"192.168.0.3","DistributedRouterMacAddress":"00-15-5D-00-00-01"}}],` +
			`"SchemaVersion":{"Major":2,"Minor":0}}`: networkOf(hns.Network{
			ID: "n1", Name: "pods", Type: hns.Overlay,
			Remote: []hns.RemoteSubnet{
				{Prefix: netip.MustParsePrefix("10.180.1.0/24"), Provider: netip.MustParseAddr("192.168.0.3")},
			},
		}),
		`{"ID":"e1","HostComputeNetwork":"n1","Policies":[{"Type":"ProviderAddress",` +
			`"Settings":{"ProviderAddress":"192.168.0.3"}}],` +
			`"IpConfigurations":[{"IpAddress":"10.180.1.7","PrefixLength":16}],"MacAddress":"02-11-0A-B4-01-07","Flags":1,` +
			`"SchemaVersion":{"Major":2,"Minor":0}}`: endpointOf(endpoint),
		`{"ID":"l1","HostComputeEndpoints":["e1"],"SourceVIP":"10.180.0.2","FrontendVIPs":["172.30.0.41"],` +
			`"PortMappings":[{"Protocol":17,` +
			`"InternalPort":5353,"ExternalPort":53,"DistributionType":2,"Flags":2}],"SchemaVersion":{"Major":2,"Minor":0},` +
			`"Flags":1}`: balancerOf(balancer),
	} {
		got, err := json.Marshal(doc)
		if err != nil || string(got) != text {
			t.Errorf("%s, %v, want\n%s", got, err, text)
		}
	}
	e := endpointOf(endpoint)
	if got, err := e.endpoint(); err != nil || !reflect.DeepEqual(got, endpoint) {
		t.Errorf("%+v, %v, want %+v", got, err, endpoint)
	}
	b := balancerOf(balancer)
	if got, err := b.balancer(); err != nil || !reflect.DeepEqual(got, balancer) {
		t.Errorf("%+v, %v, want %+v", got, err, balancer)
	}
}
