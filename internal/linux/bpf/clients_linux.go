package bpf

import (
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// Pod is the network namespace of a pod or of the node, by its cookie, with its source addresses.
type Pod struct {
	NetNS uint64
	IPv4  netip.Addr // invalid: unknown
	IPv6  netip.Addr
}

// SetPods makes programs decide for these pods, and for no others. ByHash takes the addresses of the node, with the
// cookie of NetNS, as those of its processes. It returns ErrFull if the map has no room for all.
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

// Exempting says which processes may be exempt: their connections are left to the packet plane. It has the values of
// sock.c.
type Exempting uint32

const (
	// ExemptRoot are processes in the root of all cgroups, but not below: threads of the kernel.
	ExemptRoot Exempting = 1

	// ExemptAny are the processes in the cgroups of Exempt, and below, wherever these are. Each level costs a connection
	// two look-ups.
	ExemptAny Exempting = 1<<(deepest+1) - 2

	deepest = 16
)

// ExemptLevel are those in the cgroups that are some levels below the root of all cgroups, 16 at most.
func ExemptLevel(level int) Exempting { return 1 << level & ExemptAny }

// CgroupID returns the id of a cgroup by its folder: the inode number.
func CgroupID(dir string) (uint64, error) {
	var stat unix.Stat_t
	if err := unix.Stat(dir, &stat); err != nil {
		return 0, &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	return stat.Ino, nil
}

// Exempt exempts the processes in these cgroups, and in those below, by ids, and ends the exemption of all others. If
// the maps do not exist yet, it does so once Write creates them. It returns ErrFull if the map has no room.
func (c *Conn) Exempt(cgroups map[uint64]bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.exempted = cgroups
	if c.maps == nil {
		return nil
	}
	return c.exempt()
}

// exempt writes the cgroups of the last Exempt.
func (c *Conn) exempt() error {
	want := map[string]string{}
	for id := range c.exempted {
		want[string(native64(id))] = string(native32(1))
	}
	if err := set(c.maps[sockMapExempt], want); err != nil {
		return fmt.Errorf("write which cgroups are exempt: %w", err)
	}
	return nil
}
