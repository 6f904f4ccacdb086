package address

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// HardwareAddr returns the MAC address of the interface of this host that has an address, as "00:15:5d:00:00:01".
func (*Watcher) HardwareAddr(of netip.Addr) (string, error) {
	links, err := net.Interfaces()
	if err != nil {
		return "", fmt.Errorf("list interfaces: %w", err)
	}
	for _, link := range links {
		addrs, err := link.Addrs()
		if err != nil {
			return "", fmt.Errorf("list the addresses of %s: %w", link.Name, err)
		}
		has := func(a net.Addr) bool {
			p, err := netip.ParsePrefix(a.String())
			return err == nil && p.Addr().WithZone("") == of
		}
		if slices.ContainsFunc(addrs, has) && len(link.HardwareAddr) > 0 {
			return link.HardwareAddr.String(), nil
		}
	}
	return "", fmt.Errorf("no interface with a MAC address has the address %s", of)
}
