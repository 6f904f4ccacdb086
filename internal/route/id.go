package route

import (
	"cmp"
	"fmt"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// PortID identifies a Port among those of all Services. The sources leave out a Service port with
// the name and protocol of an earlier one, so no two have the same.
type PortID struct {
	Service  cluster.Name
	Name     string
	Protocol cluster.Protocol
	Family   Family
}

// ID returns the identity of a port of this Service.
func (p *Port) ID(service cluster.Name) PortID {
	return PortID{service, p.Name, p.Protocol, p.Family}
}

// Compare orders ports by Service, family, protocol and name.
func (id PortID) Compare(o PortID) int {
	return cmp.Or(id.Service.Compare(o.Service), cmp.Compare(id.Family, o.Family),
		cmp.Compare(id.Protocol, o.Protocol), cmp.Compare(id.Name, o.Name))
}

// String returns "default/web:http tcp IPv4".
func (id PortID) String() string {
	service := id.Service.String()
	if id.Name != "" {
		service += ":" + id.Name
	}
	return fmt.Sprintf("%s %s %s", service, id.Protocol, id.Family)
}
