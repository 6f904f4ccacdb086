//go:build linux

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Addresses of the lab.
const (
	nodeName    = "node-a"
	nodeAddr    = "192.168.0.2"
	podCIDR     = "10.180.0.0/24"
	clientAddr  = "10.180.0.2"
	backendAddr = "10.180.0.9"
)

// Ports of a Service, and of endpoints without clients. UDP sockets are balanced at port 53 only.
const (
	servedPort = 53
	idlePort   = 8080
)

// endpoints is the number of endpoints of a Service that nobody uses.
const endpoints = 3

// minServices leaves one Service whose endpoints change.
const minServices = 3

// serviceAddr returns the ClusterIP of Service i. The first ones lead to the backends of the sides.
func serviceAddr(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{172, 16 + byte(i>>16), byte(i >> 8), byte(i)})
}

func nameOf(i int) cluster.Name {
	return cluster.Name{Namespace: "bench", Name: fmt.Sprint("service-", i)}
}

// idleSlice returns the EndpointSlice of a Service that nobody uses.
func idleSlice(i int, which ...int) *cluster.Slice {
	s := &cluster.Slice{
		Name: nameOf(i), Service: nameOf(i), Ports: []cluster.SlicePort{{Name: "tcp", Protocol: cluster.TCP, Port: idlePort}},
	}
	for _, k := range which {
		n := uint32(i)*8 + uint32(k)
		s.Endpoints = append(s.Endpoints,
			endpointAt(netip.AddrFrom4([4]byte{10, 190 + byte(n>>16), byte(n >> 8), byte(n)}), "node-b"))
	}
	return s
}

// usedSlice returns the EndpointSlice of the backend at a port.
func usedSlice(i int, port uint16) *cluster.Slice {
	return &cluster.Slice{
		Name: nameOf(i), Service: nameOf(i),
		Ports: []cluster.SlicePort{
			{Name: "tcp", Protocol: cluster.TCP, Port: port}, {Name: "udp", Protocol: cluster.UDP, Port: port},
		},
		Endpoints: []cluster.Endpoint{endpointAt(netip.MustParseAddr(backendAddr), nodeName)},
	}
}

func endpointAt(a netip.Addr, node string) cluster.Endpoint {
	return cluster.Endpoint{Addr: a, Node: node, Ready: true, Serving: true}
}

// newStore returns a cluster of n Services. The first ones lead to the backend, each to another port.
func newStore(n int, ports []uint16) *cluster.Store {
	s := cluster.NewStore()
	s.SetNode(&cluster.Node{
		Name: nodeName, Addresses: []netip.Addr{netip.MustParseAddr(nodeAddr)},
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix(podCIDR)},
	})
	for i := range n {
		svc := &cluster.Service{
			Name: nameOf(i), ClusterIPs: []netip.Addr{serviceAddr(i)},
			Ports: []cluster.ServicePort{{Name: "tcp", Protocol: cluster.TCP, Port: servedPort}},
		}
		slice := idleSlice(i, 0, 1, endpoints-1)
		if i < len(ports) {
			svc.Ports = append(svc.Ports, cluster.ServicePort{Name: "udp", Protocol: cluster.UDP, Port: servedPort})
			slice = usedSlice(i, ports[i])
		}
		s.SetService(svc)
		s.SetSlice(slice)
	}
	return s
}

// pipeline is the store, compiler and plane of a proxy, as its loop uses them.
type pipeline struct {
	store    *cluster.Store
	compiler *route.Compiler
	plane    plane.Plane
}

func newPipeline(s *cluster.Store, p plane.Plane) *pipeline {
	return &pipeline{store: s, plane: p, compiler: route.NewCompiler(route.Options{
		NodeName: nodeName, Families: route.Families(), Detector: route.DetectorOptions{Kind: route.DetectNodeCIDR},
	})}
}

// pass writes the changes in the store.
func (p *pipeline) pass(ctx context.Context) error {
	change, problems := p.compiler.Compile(p.store.Take())
	if len(problems) > 0 {
		return fmt.Errorf("compile: %+v", problems[0])
	}
	plan := p.plane.Plan(change)
	if plan.Steps() == 0 {
		return fmt.Errorf("nothing to write for %d touched Services", len(change.Touched))
	}
	return plan.Apply(ctx)
}

// changes replaces one endpoint of one Service after the other, and returns how long each change took from the store
// to the kernel.
func (p *pipeline) changes(ctx context.Context, services, used, count int) ([]time.Duration, error) {
	took := make([]time.Duration, 0, count)
	order := rand.New(rand.NewPCG(1, 2)).Perm(services - used)
	for k := range count {
		slice := idleSlice(used+order[k%len(order)], 0, 1, endpoints+k/len(order)%2)
		began := time.Now()
		p.store.SetSlice(slice)
		if err := p.pass(ctx); err != nil {
			return nil, fmt.Errorf("change %d: %w", k, err)
		}
		took = append(took, time.Since(began))
	}
	return took, nil
}
