package sockets

import (
	"maps"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/route"
)

// A TCP connection survives if its endpoint is in no EndpointSlice for less than secondPass, also if another endpoint was removed before.
func TestEndpointsMayMoveAfterARemoval(t *testing.T) {
	s := newStage(t)
	all, second := lists("127.0.0.1:53", "[::1]:53"), lists("127.0.0.2:53", "[::1]:54")
	without6, without4 := maps.Clone(all), maps.Clone(second)
	without6[route.IPv6] = second[route.IPv6]
	apply := func(old, svc *route.Service) *route.Service {
		s.write(svc)
		s.follow.Applied(route.Change{Touched: []route.Touch{{Name: svc.Name, Old: old, New: svc}}})
		return svc
	}
	is := apply(nil, service(all, all))
	time.Sleep(secondPass + secondPass/2) // the passes of the start are over
	c := s.client("node", s.node, unix.SOCK_STREAM, services[route.IPv4])
	is = apply(is, service(without6, without6)) // the endpoint of IPv6 is removed
	time.Sleep(secondPass * 9 / 10)
	is = apply(is, service(without4, without4)) // that of IPv4 is in no slice for some time
	time.Sleep(secondPass / 4)
	is = apply(is, service(without6, without6))
	time.Sleep(secondPass + secondPass/2)
	s.want([]*client{c}, nil)
	apply(is, service(without4, without4))
	s.want([]*client{c}, unix.ECONNABORTED)
}
