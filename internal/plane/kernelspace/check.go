package kernelspace

import (
	"errors"
	"fmt"

	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

// The errors of a configuration that HNS does not support.
var (
	errNoNetwork = errors.New("mode kernelspace needs the name of an HNS network: " +
		"set --network-name, winkernel.networkName or the environment variable KUBE_NETWORK, or use --proxy-mode userspace")
	errNoDSR = errors.New("--enable-dsr (winkernel.enableDSR): this version of HNS has no direct server return: " +
		"remove the setting, or use a Windows with HNS 9.3, 10.2 or newer")
	errNoSourceVIP = errors.New("it is an overlay network, which needs --source-vip (winkernel.sourceVip): " +
		"a free address in the pod range of this node")
	errNoRemoteSubnet = errors.New("it is an overlay network, and this version of HNS has no remote subnets: " +
		"use Windows Server 2019 or newer")
)

// check returns why the options do not fit a network.
func (o *Options) check(n hns.Network, has hns.Features) error {
	var err error
	switch {
	case o.DSR && !has.DSR:
		return errNoDSR
	case !n.Type.Is(hns.Overlay):
	case !has.RemoteSubnet:
		err = errNoRemoteSubnet
	case !o.SourceVIP.IsValid():
		err = errNoSourceVIP
	}
	if err != nil {
		return fmt.Errorf("HNS network %q: %w", n.Name, err)
	}
	return nil
}
