package assign

import (
	"fmt"
	"slices"
	"strings"
)

// Candidate is an interface of this host.
type Candidate struct {
	ID       uint64
	Name     string
	Loopback bool
}

// hostInterface is where kube-proxy's mode winuserspace added addresses: the interface by which the host
// connects to its containers.
const hostInterface = "vEthernet (HNS Internal NIC)"

// Choose returns the interface that gets addresses: the one with a name; without a name, the interface that
// kube-proxy used, or else the loopback interface.
func Choose(all []Candidate, name string) (Candidate, error) {
	named := func(name string) int {
		return slices.IndexFunc(all, func(c Candidate) bool { return strings.EqualFold(c.Name, name) })
	}
	if name != "" {
		if i := named(name); i >= 0 {
			return all[i], nil
		}
		return Candidate{}, fmt.Errorf("no interface is named %q", name)
	}
	if i := named(hostInterface); i >= 0 {
		return all[i], nil
	}
	if i := slices.IndexFunc(all, func(c Candidate) bool { return c.Loopback }); i >= 0 {
		return all[i], nil
	}
	return Candidate{}, fmt.Errorf("no interface is named %q, and none is a loopback interface", hostInterface)
}
