package explain

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/internal/plane"
)

// path sets the path of the case, and of each backend the part after it.
func (a *asker) path(out *Case, f found, p plane.Connection) {
	if a.view.Plane.Path == nil || out.Verdict == Untouched {
		return
	}
	p.KeptOut = out.Access != nil && !out.Access.Allowed
	out.Path = a.view.Plane.Path(p)
	if out.Verdict != Balanced {
		return
	}
	for i, b := range f.port.Backends(p.Way.Pool) {
		p.Backend = b
		out.Backends[i].Path = beyond(out.Path, a.view.Plane.Path(p))
	}
}

// connection returns the connection of a client, up to the choice of a backend.
func (a *asker) connection(f found, c client, to netip.Addr) plane.Connection {
	p := plane.Connection{
		Service: f.service, Port: index(f.service.Ports, f.port), Frontend: index(f.port.Frontends, f.frontend),
		Inside: c.CountsAs != Outside, Node: c.CountsAs == Node, Way: f.way(c), Unserved: f.unserved,
		Client: c.addr, To: to, Detector: &a.view.Routes.Host.Detector,
	}
	if a.view.Node != nil {
		p.NodeName = a.view.Node.Name
	}
	return p
}

// beyond returns a path without the elements of its beginning in common; the whole path if it begins otherwise.
func beyond(common, whole []string) []string {
	if n := len(common); len(whole) >= n && slices.Equal(whole[:n], common) {
		return whole[n:]
	}
	return whole
}

// index returns the index of an element in its list.
func index[T any](list []T, at *T) int {
	for i := range list {
		if &list[i] == at {
			return i
		}
	}
	return -1
}
