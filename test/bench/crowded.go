//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/test/harness"
)

// shape is a large Service.
type shape struct {
	name                   string
	addresses, ports, pods int
	ranges                 int // source ranges of a load balancer
}

func shapes() []shape {
	return []shape{
		{"1 port, 5,000 endpoints", 1, 1, 5_000, 0},
		{"1 port, 10,000 endpoints", 1, 1, 10_000, 0},
		{"1 port, 100,000 endpoints", 1, 1, 100_000, 0},
		{"1,000 addresses x 10 ports", 1_000, 10, 1, 0},
		{"1,000 addresses x 100 ports", 1_000, 100, 1, 0},
		{"10,000 ports", 1, 10_000, 1, 0},
		{"65,535 ports", 1, 65_535, 1, 0},
		{"2,000 source ranges", 1, 1, 1, 2_000},
	}
}

// changeTimes are the times of changes of other Services from the store to the kernel, during an
// operation on a large Service.
type changeTimes struct {
	While    string
	Changes  int
	P50, Max time.Duration
	Took     time.Duration // the operation on the large Service
}

// crowdedLoop is a proxy loop with many Services, one of them large.
type crowdedLoop struct {
	generator
	store   *cluster.Store
	loop    *proxy.Loop
	applied chan route.Change
	synced  chan proxy.Sync
	refused chan route.Problem
	flip    int
}

// crowdServices is the number of other Services.
const crowdServices = 1000

// measureCrowded measures each shape in its own process, and prints a table.
func measureCrowded(o options, w io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "large Service\twhile it is\ttook\tother changes\tp50\tmax\tpeak RSS")
	for i, s := range shapes() {
		cmd := exec.Command(self, "-shape", fmt.Sprint(i+1), "-plane="+o.plane)
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("measure %s: %w", s.name, err)
		}
		var r crowdedResult
		if err := json.Unmarshal(out, &r); err != nil {
			return fmt.Errorf("read the result of %s: %w", s.name, err)
		}
		for _, d := range r.Delays {
			fmt.Fprintf(t, "%s\t%s\t%v\t%d\t%v\t%v\t%d MB\n", s.name, d.While, d.Took.Round(time.Millisecond), d.Changes,
				d.P50.Round(10*time.Microsecond), d.Max.Round(100*time.Microsecond), r.PeakRSS>>20)
		}
	}
	return t.Flush()
}

type crowdedResult struct {
	Delays  []changeTimes
	PeakRSS uint64
}

// measureShape measures one shape in a new network namespace.
func measureShape(o options, w io.Writer) error {
	return inNamespace(o, w, func(o options) (any, error) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		c, err := newCrowdedLoop(ctx, o)
		if err != nil {
			return nil, err
		}
		r, err := c.measure(ctx, shapes()[o.shape-1])
		if err != nil {
			return nil, err
		}
		r.PeakRSS, err = harness.PeakMemory("self")
		return r, err
	})
}

func newCrowdedLoop(ctx context.Context, o options) (*crowdedLoop, error) {
	opened, load, err := openPlane(o.plane, o.dir, route.Families())
	if err != nil {
		return nil, err
	}
	c := &crowdedLoop{
		generator: newGenerator(), store: cluster.NewStore(),
		applied: make(chan route.Change, 1000), synced: make(chan proxy.Sync, 1000), refused: make(chan route.Problem, 1000),
	}
	listed := c.store.Feed()
	c.fill(c.store, crowdServices)
	c.loop = proxy.New(proxy.Options{
		Store: c.store, Plane: opened, Load: load, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Compiler: route.NewCompiler(route.Options{
			NodeName: "node-0000", Families: route.Families(), Excess: planeNamed(o.plane).excess,
			NodePorts: route.NodePortOptions{Primary: true},
		}),
		Followers: []proxy.Follower{c},
		Observe:   func(s proxy.Sync) { c.synced <- s },
		Report: func(problems []route.Problem) {
			for _, p := range problems {
				c.refused <- p
			}
		},
	})
	go func() { _ = c.loop.Run(ctx) }()
	listed()
	return c, c.sync(proxy.Start)
}

// Applied implements proxy.Follower.
func (c *crowdedLoop) Applied(change route.Change) { c.applied <- change }

// sync waits for a write with this cause.
func (c *crowdedLoop) sync(cause proxy.Cause) error {
	for {
		select {
		case s := <-c.synced:
			if s.Err != nil {
				return s.Err
			}
			if s.Cause == cause {
				return nil
			}
		case <-time.After(5 * time.Minute):
			return fmt.Errorf("no write of cause %s within 5 minutes", cause)
		}
	}
}

func (c *crowdedLoop) measure(ctx context.Context, s shape) (r crowdedResult, err error) {
	name := cluster.Name{Namespace: "large", Name: "large"}
	svc, ports := s.service(name)
	phases := []struct {
		while  string
		begin  func()
		wanted func(route.Change) bool
	}{
		{"written", func() {
			c.store.SetService(svc)
			for i, pods := range slices.Collect(slices.Chunk(s.endpoints(), 1000)) {
				c.store.SetSlice(&cluster.Slice{
					Name: cluster.Name{Namespace: "large", Name: fmt.Sprint("large-", i)}, Service: name,
					Ports: ports, Endpoints: pods,
				})
			}
		}, touches(name)},
		{"compared", func() { go func() { _ = c.loop.Compare(ctx, proxy.Request) }() }, nil},
		{"changed by one endpoint", func() {
			c.store.SetSlice(&cluster.Slice{
				Name: cluster.Name{Namespace: "large", Name: "large-0"}, Service: name, Ports: ports,
				Endpoints: s.endpoints()[1:min(1000, s.pods)],
			})
		}, touches(name)},
		{"deleted", func() { c.store.DeleteService(name) }, touches(name)},
	}
	for _, phase := range phases {
		d, err := c.during(phase.begin, phase.wanted)
		if err != nil {
			return r, fmt.Errorf("%s: %w", phase.while, err)
		}
		d.While = phase.while
		select {
		case p := <-c.refused:
			d.While += " (refused)"
			fmt.Fprintln(os.Stderr, p)
		default:
		}
		r.Delays = append(r.Delays, d)
	}
	return r, nil
}

func touches(name cluster.Name) func(route.Change) bool {
	return func(change route.Change) bool {
		return slices.ContainsFunc(change.Touched, func(t route.Touch) bool { return t.Name == name })
	}
}

// during changes other Services repeatedly until the operation that begin starts has ended.
func (c *crowdedLoop) during(begin func(), wanted func(route.Change) bool) (d changeTimes, err error) {
	var took []time.Duration
	start := time.Now()
	begin()
	for ended := false; !ended || len(took) < 5; {
		c.flip++
		i := c.flip * 7919 % crowdServices
		at := time.Now()
		c.store.SetSlice(c.slice(i, 0, 1, 3+c.flip/crowdServices%5))
		for name := c.service(i).Name; ; {
			change, synced, err := c.next()
			if err != nil {
				return d, err
			}
			if !ended && (wanted != nil && change.Table != nil && wanted(change) ||
				wanted == nil && synced.Cause == proxy.Request) {
				ended, d.Took = true, time.Since(start)
			}
			if change.Table != nil && touches(name)(change) {
				break
			}
		}
		took = append(took, time.Since(at))
		time.Sleep(time.Millisecond)
	}
	slices.Sort(took)
	d.Changes, d.P50, d.Max = len(took), took[len(took)/2], took[len(took)-1]
	return d, nil
}

// next returns the next change for followers, or the next write.
func (c *crowdedLoop) next() (change route.Change, s proxy.Sync, err error) {
	select {
	case change = <-c.applied:
	case s = <-c.synced:
		err = s.Err
	case <-time.After(5 * time.Minute):
		err = fmt.Errorf("nothing was written for 5 minutes")
	}
	return change, s, err
}

// service returns the large Service, and the ports of its slices.
func (s shape) service(name cluster.Name) (*cluster.Service, []cluster.SlicePort) {
	svc := &cluster.Service{Name: name, ClusterIPs: []netip.Addr{netip.MustParseAddr("172.31.0.1")}}
	for i := 1; i < s.addresses; i++ {
		svc.ExternalIPs = append(svc.ExternalIPs, netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}))
	}
	if s.ranges > 0 {
		svc.Type, svc.Restricted = cluster.LoadBalancer, true
		svc.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("203.0.113.1")}
	}
	for i := range s.ranges {
		svc.SourceRanges = append(svc.SourceRanges,
			netip.PrefixFrom(netip.AddrFrom4([4]byte{100, 64 + byte(i>>14), byte(i >> 6), byte(i << 2)}), 31))
	}
	var ports []cluster.SlicePort
	for i := range s.ports {
		text := fmt.Sprint("p", i)
		svc.Ports = append(svc.Ports, cluster.ServicePort{Name: text, Protocol: cluster.TCP, Port: uint16(i + 1)})
		ports = append(ports, cluster.SlicePort{Name: text, Protocol: cluster.TCP, Port: 8080})
	}
	return svc, ports
}

func (s shape) endpoints() []cluster.Endpoint {
	list := make([]cluster.Endpoint, s.pods)
	for i := range list {
		list[i] = cluster.Endpoint{
			Addr: netip.AddrFrom4([4]byte{10, 128 + byte(i>>16), byte(i >> 8), byte(i)}), Ready: true, Serving: true,
		}
	}
	return list
}
