package ebpf

import (
	"github.com/sluice-proxy/sluice/internal/follow/affinity"
	"github.com/sluice-proxy/sluice/internal/kernel/address"
	"github.com/sluice-proxy/sluice/internal/kernel/bpf"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// leases returns the part that grants leases: sockets then repeat the choices of the packet plane. The part is empty if the packet plane
// does not report them.
func leases(s plane.Setup, on *plane.Opened, conn *bpf.Conn) plane.Part {
	if on.Remembered == nil {
		return plane.Part{}
	}
	f := affinity.New(affinity.Options{
		Leases: conn, Remembered: on.Remembered,
		Port:   func(svc *route.Service, p *route.Port) bpf.Pool { return portOf(poolOf(svc.Name, p, route.Cluster)) },
		Source: address.New(address.Options{NetNS: s.NetNS}).Source,
		Failed: func(err error) {
			s.Log.Error("Connections with session affinity are served packet by packet, retrying", "error", err)
		},
	})
	return plane.Part{Run: f.Run, Follower: f}
}

// portOf returns the id that all pools of a port share.
func portOf(id bpf.Pool) bpf.Pool {
	id[len(id)-1] = 0
	return id
}
