package hnstest

import (
	"encoding/json"
	"net/netip"

	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

// The documents of HNS, schema 2, as far as package hns uses them. The names are from Microsoft's schema
// (HostComputeNetwork, HostComputeEndpoint, HostComputeLoadBalancer) and the library hnslib.
type (
	version struct{ Major, Minor int }

	policy struct {
		Type     string
		Settings json.RawMessage
	}

	networkDocument struct {
		ID            string   `json:",omitempty"`
		Name          string   `json:",omitempty"`
		Type          string   `json:",omitempty"`
		Policies      []policy `json:",omitempty"`
		SchemaVersion version
	}

	endpointDocument struct {
		ID                 string            `json:",omitempty"`
		Name               string            `json:",omitempty"`
		HostComputeNetwork string            `json:",omitempty"`
		Policies           []policy          `json:",omitempty"`
		IPConfigurations   []ipConfiguration `json:"IpConfigurations,omitempty"`
		MacAddress         string            `json:",omitempty"`
		Flags              uint32            `json:",omitempty"`
		SchemaVersion      version
	}

	ipConfiguration struct {
		IPAddress    string `json:"IpAddress,omitempty"`
		PrefixLength uint8  `json:",omitempty"`
	}

	balancerDocument struct {
		ID                   string        `json:",omitempty"`
		HostComputeEndpoints []string      `json:",omitempty"`
		SourceVIP            string        `json:",omitempty"`
		FrontendVIPs         []string      `json:",omitempty"`
		PortMappings         []portMapping `json:",omitempty"`
		SchemaVersion        version
		Flags                uint32 `json:",omitempty"`
	}

	portMapping struct {
		Protocol         uint32 `json:",omitempty"`
		InternalPort     uint16 `json:",omitempty"`
		ExternalPort     uint16 `json:",omitempty"`
		DistributionType uint32 `json:",omitempty"`
		Flags            uint32 `json:",omitempty"`
	}

	remoteSubnet struct {
		DestinationPrefix           string
		IsolationID                 uint16 `json:"IsolationId"`
		ProviderAddress             string
		DistributedRouterMacAddress string
	}

	providerAddress struct{ ProviderAddress string }
)

const (
	policyRemoteSubnet = "RemoteSubnetRoute"
	policyProvider     = "ProviderAddress"

	flagRemote        = 1 // of an endpoint
	distributeByIP    = 2 // DistributionType: all connections of a client address
	prefixOfEndpoints = 16
)

// schema is the version of all documents.
func schema() version { return version{Major: 2} }

// settings encodes the settings of a policy.
func settings(of any) json.RawMessage {
	text, err := json.Marshal(of)
	if err != nil {
		panic(err) // the types have only text and numbers
	}
	return text
}

func networkOf(n hns.Network) networkDocument {
	doc := networkDocument{ID: n.ID, Name: n.Name, Type: string(n.Type), SchemaVersion: schema()}
	for _, r := range n.Remote {
		doc.Policies = append(doc.Policies, policy{policyRemoteSubnet, settings(remoteSubnet{
			DestinationPrefix: r.Prefix.String(), IsolationID: 4096, ProviderAddress: r.Provider.String(),
			DistributedRouterMacAddress: "00-15-5D-00-00-01",
		})})
	}
	return doc
}

func endpointOf(e hns.Endpoint) endpointDocument {
	doc := endpointDocument{
		ID: e.ID, Name: e.Name, HostComputeNetwork: e.Network, MacAddress: e.MAC, SchemaVersion: schema(),
	}
	for _, a := range e.Addrs {
		doc.IPConfigurations = append(doc.IPConfigurations,
			ipConfiguration{IPAddress: a.String(), PrefixLength: prefixOfEndpoints})
	}
	if e.Remote {
		doc.Flags = flagRemote
	}
	if e.Provider.IsValid() {
		doc.Policies = []policy{{policyProvider, settings(providerAddress{e.Provider.String()})}}
	}
	return doc
}

// endpoint returns the endpoint of a document.
func (doc *endpointDocument) endpoint() (hns.Endpoint, error) {
	e := hns.Endpoint{
		ID: doc.ID, Name: doc.Name, Network: doc.HostComputeNetwork, MAC: doc.MacAddress, Remote: doc.Flags&flagRemote != 0,
	}
	for _, c := range doc.IPConfigurations {
		a, err := netip.ParseAddr(c.IPAddress)
		if err != nil {
			return e, err
		}
		e.Addrs = append(e.Addrs, a)
	}
	for _, p := range doc.Policies {
		var s providerAddress
		if err := json.Unmarshal(p.Settings, &s); err != nil {
			return e, err
		}
		if p.Type == policyProvider {
			var err error
			if e.Provider, err = netip.ParseAddr(s.ProviderAddress); err != nil {
				return e, err
			}
		}
	}
	return e, nil
}

// bit is a flag of a document.
type bit struct {
	set *bool
	at  uint32
}

func balancerFlags(f *hns.Flags) []bit { return []bit{{&f.DSR, 1}, {&f.IPv6, 2}} }

func portFlags(f *hns.Flags) []bit {
	return []bit{{&f.LocalRouted, 2}, {&f.UseMux, 4}, {&f.PreserveDIP, 8}, {&f.External, 16}}
}

func (b bit) in(all uint32) uint32 {
	if *b.set {
		return all | b.at
	}
	return all
}

func balancerOf(l hns.LoadBalancer) balancerDocument {
	m := portMapping{Protocol: uint32(l.Protocol), InternalPort: l.Target, ExternalPort: l.Port}
	if l.Flags.Affinity {
		m.DistributionType = distributeByIP
	}
	doc := balancerDocument{ID: l.ID, HostComputeEndpoints: l.Endpoints, SchemaVersion: schema()}
	for _, b := range portFlags(&l.Flags) {
		m.Flags = b.in(m.Flags)
	}
	for _, b := range balancerFlags(&l.Flags) {
		doc.Flags = b.in(doc.Flags)
	}
	doc.PortMappings = []portMapping{m}
	if l.VIP.IsValid() {
		doc.FrontendVIPs = []string{l.VIP.String()}
	}
	if l.SourceVIP.IsValid() {
		doc.SourceVIP = l.SourceVIP.String()
	}
	return doc
}

// balancer returns the load balancer of a document.
func (doc *balancerDocument) balancer() (l hns.LoadBalancer, err error) {
	l = hns.LoadBalancer{ID: doc.ID, Endpoints: doc.HostComputeEndpoints}
	if len(doc.PortMappings) != 1 || len(doc.FrontendVIPs) > 1 {
		return l, errInvalid
	}
	if len(doc.FrontendVIPs) > 0 {
		if l.VIP, err = netip.ParseAddr(doc.FrontendVIPs[0]); err != nil {
			return l, err
		}
	}
	if doc.SourceVIP != "" {
		if l.SourceVIP, err = netip.ParseAddr(doc.SourceVIP); err != nil {
			return l, err
		}
	}
	m := doc.PortMappings[0]
	l.Protocol, l.Port, l.Target = uint8(m.Protocol), m.ExternalPort, m.InternalPort
	l.Flags.Affinity = m.DistributionType == distributeByIP
	for _, b := range portFlags(&l.Flags) {
		*b.set = m.Flags&b.at != 0
	}
	for _, b := range balancerFlags(&l.Flags) {
		*b.set = doc.Flags&b.at != 0
	}
	return l, nil
}
