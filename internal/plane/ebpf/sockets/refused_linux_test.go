package sockets

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// A Service whose rules the kernel refuses at the start is in the table but in no change. Programs still balance it,
// so its UDP sockets stay.
func TestSocketsOfRefusedServicesStay(t *testing.T) {
	s := newStage(t)
	svc := service(lists("127.0.0.1:53", "[::1]:53"))
	s.write(svc)
	c := s.client("node", s.node, unix.SOCK_DGRAM, services[route.IPv4])
	table := &route.Table{Services: map[cluster.Name]*route.Service{svc.Name: svc}}
	s.follow.Applied(route.Change{Table: table})
	time.Sleep(secondPass + secondPass/2)
	s.want([]*client{c}, nil)
	s.follow.Applied(route.Change{Table: &route.Table{}, Touched: []route.Touch{{Name: svc.Name, Old: svc}}})
	s.want([]*client{c}, unix.ECONNABORTED)
}
