package hns

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/Microsoft/hnslib/hcn"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/windows"
)

// Service is the HNS of this host.
type Service struct{}

// New returns the HNS of this host. It makes no call. It discards the log of the library, which repeats the errors that
// the library returns.
func New() *Service {
	logrus.SetOutput(io.Discard)
	return &Service{}
}

// denied is the code to which the library converts E_ACCESSDENIED.
const denied = hcn.ErrorCode(windows.ERROR_ACCESS_DENIED)

// mapped wraps an error of the library with the matching error of this package.
func mapped(doing string, err error) error {
	switch {
	case err == nil:
		return nil
	case hcn.IsNetworkNotFoundError(err), isNoNetwork(err):
		return fmt.Errorf("%s: %w: %w", doing, ErrNoNetwork, err)
	case hcn.IsNotFoundError(err), hcn.IsElementNotFoundError(err), hcn.IsEndpointNotFoundError(err):
		return fmt.Errorf("%s: %w: %w", doing, ErrNotFound, err)
	case hcn.IsPortAlreadyExistsError(err):
		return fmt.Errorf("%s: %w: %w", doing, ErrPortExists, err)
	case hcn.IsInvalidIPError(err):
		return fmt.Errorf("%s: %w: %w", doing, ErrInvalidIP, err)
	case hcn.CheckErrorWithCode(err, denied), errors.Is(err, windows.ERROR_ACCESS_DENIED):
		return fmt.Errorf("%s: %w: %w", doing, ErrDenied, err)
	case hcn.IsNotImplemented(err):
		return fmt.Errorf("%s: %w: %w", doing, ErrNotImplemented, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// isNoNetwork reports whether the library has not found a network.
func isNoNetwork(err error) bool {
	_, is := errors.AsType[hcn.NetworkNotFoundError](err)
	return is
}

// Features returns the features of this version of HNS.
func (*Service) Features(context.Context) (Features, error) {
	f, err := hcn.GetCachedSupportedFeatures()
	if err != nil {
		return Features{}, errors.Join(ErrNoService, mapped("read the version of HNS", err))
	}
	return Features{
		V2: f.Api.V2, RemoteSubnet: f.RemoteSubnet, DSR: f.DSR, SessionAffinity: f.SessionAffinity,
		DualStack: f.IPv6DualStack, Modify: f.ModifyLoadbalancer,
	}, nil
}

// Network returns the network with a name, or ErrNoNetwork.
func (*Service) Network(_ context.Context, name string) (Network, error) {
	n, err := hcn.GetNetworkByName(name)
	if err != nil {
		return Network{}, mapped("read network "+name, err)
	}
	network := Network{ID: n.Id, Name: n.Name, Type: NetworkType(n.Type)}
	for _, p := range n.Policies {
		if p.Type != hcn.RemoteSubnetRoute {
			continue
		}
		var r hcn.RemoteSubnetRoutePolicySetting
		if err := json.Unmarshal(p.Settings, &r); err != nil {
			return Network{}, fmt.Errorf("read the remote subnets of network %s: %w", name, err)
		}
		prefix, prefixErr := netip.ParsePrefix(r.DestinationPrefix)
		provider, providerErr := netip.ParseAddr(r.ProviderAddress)
		if err := errors.Join(prefixErr, providerErr); err != nil {
			return Network{}, fmt.Errorf("read the remote subnets of network %s: %w", name, err)
		}
		network.Remote = append(network.Remote, RemoteSubnet{prefix, provider})
	}
	return network.Canonical(), nil
}

// Endpoints returns the endpoints of all networks.
func (*Service) Endpoints(context.Context) ([]Endpoint, error) {
	list, err := complete(func() ([]hcn.HostComputeEndpoint, error) {
		list, err := hcn.ListEndpoints()
		return list, mapped("list endpoints", err)
	})
	if err != nil {
		return nil, err
	}
	all := make([]Endpoint, len(list))
	for i := range list {
		all[i] = endpointOf(&list[i]).Canonical()
	}
	return all, nil
}

func endpointOf(e *hcn.HostComputeEndpoint) Endpoint {
	out := Endpoint{
		ID: e.Id, Name: e.Name, Network: e.HostComputeNetwork, MAC: e.MacAddress,
		Remote: e.Flags&hcn.EndpointFlagsRemoteEndpoint != 0,
	}
	for _, c := range e.IpConfigurations {
		if a, err := netip.ParseAddr(c.IpAddress); err == nil {
			out.Addrs = append(out.Addrs, a)
		}
	}
	for _, p := range e.Policies {
		var s hcn.ProviderAddressEndpointPolicySetting
		if p.Type == hcn.NetworkProviderAddress && json.Unmarshal(p.Settings, &s) == nil {
			out.Provider, _ = netip.ParseAddr(s.ProviderAddress)
		}
	}
	return out
}

// CreateEndpoint creates an endpoint in its network and returns its ID.
func (*Service) CreateEndpoint(_ context.Context, e Endpoint) (string, error) {
	doc := &hcn.HostComputeEndpoint{
		Name: e.Name, HostComputeNetwork: e.Network, MacAddress: e.MAC,
		SchemaVersion: hcn.SchemaVersion{Major: 2},
	}
	for _, a := range e.Addrs {
		doc.IpConfigurations = append(doc.IpConfigurations, hcn.IpConfig{IpAddress: a.String()})
	}
	if e.Remote {
		doc.Flags = hcn.EndpointFlagsRemoteEndpoint
	}
	if e.Provider.IsValid() {
		settings, err := json.Marshal(hcn.ProviderAddressEndpointPolicySetting{ProviderAddress: e.Provider.String()})
		if err != nil {
			return "", err
		}
		doc.Policies = []hcn.EndpointPolicy{{Type: hcn.NetworkProviderAddress, Settings: settings}}
	}
	made, err := doc.Create()
	if err != nil {
		return "", mapped(fmt.Sprintf("create the endpoint %s", e.Addrs), err)
	}
	return ID(made.Id), nil
}

// DeleteEndpoint deletes an endpoint, or returns ErrNotFound.
func (*Service) DeleteEndpoint(_ context.Context, id string) error {
	return mapped("delete endpoint "+id, (&hcn.HostComputeEndpoint{Id: id}).Delete())
}
