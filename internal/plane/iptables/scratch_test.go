package iptables

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

func TestScratch(t *testing.T) {
	for _, v := range variants() {
		kernel, _ := realKernel(t, v)
		s := cluster.NewStore()
		n := 10000
		put := func(i, eps int) {
			name := cluster.Name{Namespace: "ns", Name: fmt.Sprintf("svc-%d", i)}
			a := netip.AddrFrom4([4]byte{172, 30, byte(i >> 8), byte(i)})
			s.SetService(&cluster.Service{Name: name, ClusterIPs: []netip.Addr{a}, Ports: []cluster.ServicePort{{Name: "http", Protocol: cluster.TCP, Port: 80}}})
			sl := &cluster.Slice{Name: name, Service: name, Ports: []cluster.SlicePort{{Name: "http", Protocol: cluster.TCP, Port: 8080}}}
			for e := range eps {
				sl.Endpoints = append(sl.Endpoints, cluster.Endpoint{Addr: netip.AddrFrom4([4]byte{10, byte(100 + e), byte(i >> 8), byte(i)}), Ready: true, Serving: true})
			}
			s.SetSlice(sl)
		}
		for i := range n {
			put(i, 3)
		}
		c := route.NewCompiler(route.Options{NodeName: "a", Detector: route.DetectorOptions{Kind: route.DetectClusterCIDR, CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}})
		change, _ := c.Compile(s.Take())
		p := newPlane(kernel)
		step := func(what string, f func() error) {
			began := time.Now()
			if err := f(); err != nil {
				t.Fatal(err)
			}
			t.Log(v, what, time.Since(began))
		}
		step("refresh", func() error { return p.Refresh(context.Background()) })
		var plan interface {
			Apply(context.Context) error
			Steps() int
		}
		step("plan", func() error { plan = p.Plan(change); return nil })
		step("apply", func() error { return plan.Apply(context.Background()) })
		for range 3 {
			put(77, 4)
			change, _ = c.Compile(s.Take())
			step("change", func() error { return p.Plan(change).Apply(context.Background()) })
			put(77, 3)
			change, _ = c.Compile(s.Take())
			step("change", func() error { return p.Plan(change).Apply(context.Background()) })
		}
		put(77, 0)
		change, _ = c.Compile(s.Take())
		step("no endpoints", func() error { return p.Plan(change).Apply(context.Background()) })
		put(77, 3)
		change, _ = c.Compile(s.Take())
		step("endpoints", func() error { return p.Plan(change).Apply(context.Background()) })
		step("refresh", func() error { return p.Refresh(context.Background()) })
		step("plan", func() error { plan = p.Plan(route.Change{Table: c.Table()}); return nil })
		t.Log(plan.Steps())
	}
}
