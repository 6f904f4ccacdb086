package hnstest

import (
	"errors"
	"net/netip"
	"reflect"
	"testing"

	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

// The documents that the tests of Microsoft's library send to a real HNS have the meaning that this package assumes:
// HcnCreateTestLoadBalancer (hcnutils_test.go of github.com/microsoft/hcsshim) and TestAddDSRLoadBalancer
// (hcnloadbalancer_test.go), with one of their two addresses.
func TestDocumentsOfMicrosoft(t *testing.T) {
	vip, source := netip.MustParseAddr("1.1.1.2"), netip.MustParseAddr("10.0.0.1")
	for text, want := range map[string]hns.LoadBalancer{
		`{"HostComputeEndpoints":["e1"],"SourceVIP":"10.0.0.1","FrontendVIPs":["1.1.1.2"],"PortMappings":[{"Protocol":6,` +
			`"InternalPort":8080,` +
			`"ExternalPort":8090}],"SchemaVersion":{"Major":2,"Minor":0}}`: {
			VIP: vip, Protocol: 6, Port: 8090, Target: 8080, Endpoints: []string{"e1"}, SourceVIP: source,
		},
		`{"HostComputeEndpoints":["e1"],"SourceVIP":"10.0.0.1","FrontendVIPs":["1.1.1.2"],"PortMappings":[{"Protocol":6,` +
			`"InternalPort":8080,` +
			`"ExternalPort":80,"Flags":8}],"SchemaVersion":{"Major":2,"Minor":0},"Flags":1}`: {
			VIP: vip, Protocol: 6, Port: 80, Target: 8080, Endpoints: []string{"e1"}, SourceVIP: source,
			Flags: hns.Flags{DSR: true, PreserveDIP: true},
		},
	} {
		var doc balancerDocument
		if err := decode([]byte(text), &doc); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if got, err := doc.balancer(); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s\nmeans %+v, %v, want %+v", text, got, err, want)
		}
	}
}

// The server refuses documents that HNS would refuse, or understand in part only.
func TestInvalidDocuments(t *testing.T) {
	f := New(ContractNetwork())
	n, err := f.Network(t.Context(), "pods")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		// There is no version.
		`{"IpConfigurations":[{"IpAddress":"10.180.1.7"}]}`,
		// The version is the other one.
		`{"IpConfigurations":[{"IpAddress":"10.180.1.7"}],"SchemaVersion":{"Major":1,"Minor":0}}`,
		// The MAC address is none.
		`{"IpConfigurations":[{"IpAddress":"10.180.1.7"}],"MacAddress":"02110AB40107","SchemaVersion":{"Major":2,"Minor":0}}`,
		// A field has no such name.
		`{"IpConfigurations":[{"IpAddress":"10.180.1.7"}],"MacAddres":"02-11-0A-B4-01-07",` +
			`"SchemaVersion":{"Major":2,"Minor":0}}`,
	} {
		if _, _, err := f.call("HcnCreateEndpoint", n.ID, []byte(text)); !errors.Is(err, errInvalid) {
			t.Errorf("%s: %v", text, err)
		}
	}
	const balancer = `{"HostComputeEndpoints":["e1"],"PortMappings":[{"Protocol":6}],"SchemaVersion":{"Major":2,` +
		`"Minor":0},"VirtualIPs":["1.1.1.2"]}`
	if _, _, err := f.call("HcnCreateLoadBalancer", "-", []byte(balancer)); !errors.Is(err, errInvalid) {
		t.Error(err)
	}
	if got := f.Documents(); len(got) != 5 || got[4] != "HcnCreateLoadBalancer "+balancer {
		t.Errorf("documents %q", got)
	}
}
