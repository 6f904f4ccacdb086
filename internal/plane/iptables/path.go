package iptables

import (
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Path returns the chains of this plane that the first packet of a connection passes, each with its table.
func Path(p plane.Connection) []string { return pathFrom(entrances()[0], p) }

// pathFrom returns the chains of a packet that enters by one of the entrances.
func pathFrom(e entrance, p plane.Connection) []string {
	port := &p.Service.Ports[p.Port]
	f, name := &port.Frontends[p.Frontend], idOf(port.ID(p.Service.Name))
	if f.Kind == route.ClusterIP && p.Way.Verdict != route.Balance {
		return []string{in(filter, services)}
	}
	if p.Unserved || f.Node.Verdict != route.Balance { // refused to all clients
		return []string{in(filter, external)}
	}
	path := append([]string{in(nat, e.frontends)}, e.entries(p, name, f)...)
	switch {
	case p.KeptOut, f.Restricted && p.Way.Verdict != route.Balance:
		return append(path, in(filter, firewall)) // it comes before KUBE-EXTERNAL-SERVICES
	case p.Way.Verdict != route.Balance:
		return append(path, in(filter, external))
	}
	path = append(path, in(nat, name.pool(p.Way.Pool)))
	if p.Backend.IsValid() && e.frontends == services {
		path = append(path, in(nat, name.endpoint(p.Backend.String())))
	}
	return path
}

// entries returns the chains between that of the frontends and those that choose a backend.
func (e entrance) entries(p plane.Connection, name id, f *route.Frontend) []string {
	var path []string
	switch {
	case f.Kind == route.ClusterIP:
		return nil
	case f.Kind == route.NodePort:
		path = append(path, in(nat, e.nodePorts))
	case f.Restricted:
		path = append(path, in(nat, name.ranges()))
	}
	if p.KeptOut {
		return path
	}
	return append(path, in(nat, name.external()))
}

func in(t table, chain string) string { return t.String() + " " + chain }
