package hns

import (
	"context"
	"net/netip"

	"github.com/Microsoft/hnslib/hcn"
)

// LoadBalancers returns all load balancers of this host, including the ones of other programs.
func (*Service) LoadBalancers(context.Context) ([]LoadBalancer, error) {
	list, err := complete(func() ([]hcn.HostComputeLoadBalancer, error) {
		list, err := hcn.ListLoadBalancers()
		return list, mapped("list load balancers", err)
	})
	if err != nil {
		return nil, err
	}
	all := make([]LoadBalancer, len(list))
	for i := range list {
		all[i] = balancerOf(&list[i]).Canonical()
	}
	return all, nil
}

// CreateLoadBalancer creates a load balancer and returns its ID. It returns ErrPortExists if
// another one has the address and port.
func (*Service) CreateLoadBalancer(_ context.Context, l LoadBalancer) (string, error) {
	made, err := documentOf(l).Create()
	if err != nil {
		return "", mapped("create the load balancer "+l.String(), err)
	}
	return ID(made.Id), nil
}

// ModifyLoadBalancer changes the load balancer with the ID in place.
func (*Service) ModifyLoadBalancer(_ context.Context, l LoadBalancer) error {
	_, err := documentOf(l).Update(l.ID)
	return mapped("change the load balancer "+l.String(), err)
}

// DeleteLoadBalancer deletes a load balancer, or returns ErrNotFound.
func (*Service) DeleteLoadBalancer(_ context.Context, id string) error {
	return mapped("delete load balancer "+id, (&hcn.HostComputeLoadBalancer{Id: id}).Delete())
}

// documentOf returns the document for HNS, without the ID.
func documentOf(l LoadBalancer) *hcn.HostComputeLoadBalancer {
	mapping := hcn.LoadBalancerPortMapping{Protocol: uint32(l.Protocol), InternalPort: l.Target, ExternalPort: l.Port}
	if l.Flags.Affinity {
		mapping.DistributionType = hcn.LoadBalancerDistributionSourceIP
	}
	doc := &hcn.HostComputeLoadBalancer{HostComputeEndpoints: l.Endpoints, SchemaVersion: hcn.SchemaVersion{Major: 2}}
	for _, b := range portFlags(&l.Flags) {
		if *b.set {
			mapping.Flags |= b.flag
		}
	}
	for _, b := range flags(&l.Flags) {
		if *b.set {
			doc.Flags |= b.flag
		}
	}
	doc.PortMappings = []hcn.LoadBalancerPortMapping{mapping}
	if l.VIP.IsValid() {
		doc.FrontendVIPs = []string{l.VIP.String()}
	}
	if l.SourceVIP.IsValid() {
		doc.SourceVIP = l.SourceVIP.String()
	}
	return doc
}

func balancerOf(doc *hcn.HostComputeLoadBalancer) LoadBalancer {
	l := LoadBalancer{
		ID: doc.Id, Endpoints: doc.HostComputeEndpoints, Other: len(doc.PortMappings) != 1 || len(doc.FrontendVIPs) > 1,
	}
	if len(doc.FrontendVIPs) > 0 {
		l.VIP, _ = netip.ParseAddr(doc.FrontendVIPs[0])
	}
	l.SourceVIP, _ = netip.ParseAddr(doc.SourceVIP)
	known := hcn.LoadBalancerFlags(0)
	for _, b := range flags(&l.Flags) {
		*b.set = doc.Flags&b.flag != 0
		known |= b.flag
	}
	l.Other = l.Other || doc.Flags&^known != 0
	if len(doc.PortMappings) == 0 {
		return l
	}
	m := doc.PortMappings[0]
	l.Protocol, l.Port, l.Target = uint8(m.Protocol), m.ExternalPort, m.InternalPort
	l.Flags.Affinity = m.DistributionType == hcn.LoadBalancerDistributionSourceIP
	knownOfPort := hcn.LoadBalancerPortMappingFlags(0)
	for _, b := range portFlags(&l.Flags) {
		*b.set = m.Flags&b.flag != 0
		knownOfPort |= b.flag
	}
	byProtocol := m.DistributionType == hcn.LoadBalancerDistributionSourceIPProtocol
	l.Other = l.Other || m.Flags&^knownOfPort != 0 || byProtocol
	return l
}

type flag[F any] struct {
	set  *bool
	flag F
}

func flags(f *Flags) []flag[hcn.LoadBalancerFlags] {
	return []flag[hcn.LoadBalancerFlags]{{&f.DSR, hcn.LoadBalancerFlagsDSR}, {&f.IPv6, hcn.LoadBalancerFlagsIPv6}}
}

// flagExternal is a flag of HNS for which the library has no name.
const flagExternal hcn.LoadBalancerPortMappingFlags = 16

func portFlags(f *Flags) []flag[hcn.LoadBalancerPortMappingFlags] {
	return []flag[hcn.LoadBalancerPortMappingFlags]{
		{&f.LocalRouted, hcn.LoadBalancerPortMappingFlagsLocalRoutedVIP},
		{&f.UseMux, hcn.LoadBalancerPortMappingFlagsUseMux},
		{&f.PreserveDIP, hcn.LoadBalancerPortMappingFlagsPreserveDIP},
		{&f.External, flagExternal},
	}
}
