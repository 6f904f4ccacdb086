package config

import "github.com/sluice-proxy/sluice/internal/strict"

const kernelspaceMode = "kernelspace"

// networkVariable names the HNS network if the configuration does not, as in kube-proxy.
const networkVariable = "KUBE_NETWORK"

// winkernelDefaults sets the fields of the section winkernel that are not set, in the mode kernelspace.
func (c *check) winkernelDefaults(env Env) {
	in := &c.config.Winkernel
	if c.config.Mode != kernelspaceMode {
		return
	}
	if env.Getenv != nil {
		ifZero(&in.NetworkName, env.Getenv(networkVariable))
	}
	ifZero(&in.RootHnsEndpointName, "cbr0")
}

// hns returns the settings of the section winkernel. They are checked in the mode kernelspace only.
func (c *check) hns() HNS {
	in := c.config.Winkernel
	out := HNS{
		Network: in.NetworkName, DSR: in.EnableDSR,
		RootEndpoint: in.RootHnsEndpointName, ForwardHealthCheck: in.ForwardHealthCheckVip,
	}
	if in.SourceVip == "" {
		return out
	}
	addr, ok := strict.Addr(in.SourceVip)
	if !ok && c.config.Mode == kernelspaceMode {
		c.problem("winkernel.sourceVip", invalid(in.SourceVip, "must be an IP address"))
	}
	out.SourceVIP = addr
	return out
}
