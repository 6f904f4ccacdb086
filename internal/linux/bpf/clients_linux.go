package bpf

import (
	"fmt"
	"net/netip"
	"slices"
)

// Pod is the network namespace of a pod, by its cookie, with its source addresses.
type Pod struct {
	NetNS uint64
	IPv4  netip.Addr // invalid: unknown
	IPv6  netip.Addr
}

// SetPods makes programs decide for these pods, and for no others. It returns ErrFull if the map has no room for all.
func (c *Conn) SetPods(pods []Pod) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.open(); err != nil {
		return err
	}
	want := map[string]string{}
	for _, p := range pods {
		for is4, a := range []netip.Addr{p.IPv6, p.IPv4} {
			if a.IsValid() {
				k := slices.Concat(native64(p.NetNS), native32(uint32(is4)), native32(0))
				want[string(k)] = string(address(a))
			}
		}
	}
	err := c.changeTables(func() error { return set(c.maps[sockMapClients], want) }) // decisions may have old addresses
	if err != nil {
		return fmt.Errorf("write which pods are known: %w", err)
	}
	return nil
}
