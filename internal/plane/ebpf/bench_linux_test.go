package ebpf_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/ebpf"
	"github.com/sluice-proxy/sluice/internal/plane/nftables"
	"github.com/sluice-proxy/sluice/internal/plane/planetest"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/test/lab"
)

const backend = "10.180.0.9"

// services is a cluster in which the first Service leads to the backend.
func services(n, generation int) *cluster.Store {
	s := cluster.NewStore()
	s.SetNode(planetest.NewNode("10.180.0.0/24", "fd00:10:180::/64"))
	for i := range n {
		name := cluster.Name{Namespace: "ns", Name: fmt.Sprint("svc-", i)}
		s.SetService(&cluster.Service{
			Name: name, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{172, byte(30 + i/62_500), byte(i / 250 % 250), byte(1 + i%250)})},
			Ports: []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80}},
		})
		sl := &cluster.Slice{Name: name, Service: name, Ports: []cluster.SlicePort{{Protocol: cluster.TCP, Port: 8080}}}
		for k := range 3 {
			sl.Endpoints = append(sl.Endpoints, planetest.Endpoint(fmt.Sprintf("10.%d.%d.%d", 190+k+generation, i/250%250, 1+i%250), "b"))
		}
		if i == 0 {
			sl.Endpoints = []cluster.Endpoint{planetest.Endpoint(backend, "a")}
		}
		s.SetSlice(sl)
	}
	return s
}

func open(b *testing.B, host *lab.Host) plane.Plane {
	b.Helper()
	kerneltest.NeedPrograms(b)
	kind := ebpf.Kind(nftables.Kind())
	setup := plane.Setup{
		Config: &config.Config{MasqueradeMark: 0x4000, EBPF: config.EBPF{Dir: filepath.Join(lab.BPFFS(b), "sluice"), Cgroup: host.Cgroup()}},
		NetNS:  host.NetNSFD(), Families: planetest.Families(), Log: slog.New(slog.DiscardHandler),
	}
	opened, err := kind.Open(b.Context(), setup)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_, err := opened.Plane.Remove(context.Background())
		if err != nil {
			b.Error(err)
		}
		_ = opened.Close() // nothing is left to lose
	})
	return opened.Plane
}

func write(b *testing.B, p plane.Plane, c route.Change) {
	b.Helper()
	if err := p.Plan(c).Apply(b.Context()); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkConnect times connect() from a pod to another one on the same node: directly, through a Service by its socket, and
// through the same Service by rules, in turns. There is one run for each number of Services.
func BenchmarkConnect(b *testing.B) {
	for _, n := range []int{10, 10_000} {
		b.Run(fmt.Sprint(n, " Services"), func(b *testing.B) {
			l := lab.New(b, lab.Options{Cgroups: true})
			l.Pod(l.NodeA, backend).Serve(lab.TCP, 8080)
			pod := l.Pod(l.NodeA, "10.180.0.2")
			p := open(b, l.NodeA)
			if err := p.Refresh(b.Context()); err != nil {
				b.Fatal(err)
			}
			write(b, p, planetest.Compile(services(n, 0), route.Options{Detector: route.DetectorOptions{Kind: route.DetectNodeCIDR}}))
			straight, service := netip.MustParseAddrPort(backend+":8080"), netip.MustParseAddrPort("172.30.0.1:80")
			inside := lab.Inside(b, l.NodeA.Cgroup(), pod.NetNSFD())
			ways := []struct {
				name string
				on   func(func() error) error
				to   netip.AddrPort
			}{{"direct", inside, straight}, {"ebpf", inside, service}, {"nftables", pod.WithoutCgroup().Do, service}}
			took := map[string][]time.Duration{}
			for i := range max(b.N, 100) {
				for k := range ways { // rotated, so that each follows each other one equally often
					w := ways[(i+k*(1+i/3%2))%3]
					if err := w.on(func() error { return connect(w.to, func(d time.Duration) { took[w.name] = append(took[w.name], d) }) }); err != nil {
						b.Fatalf("%s: %v", w.name, err)
					}
				}
			}
			for _, w := range ways {
				slices.Sort(took[w.name])
				p50 := took[w.name][len(took[w.name])/2]
				b.ReportMetric(float64(p50.Nanoseconds()), w.name+"-p50-ns")
				b.ReportMetric(float64(p50)/float64(took["direct"][len(took["direct"])/2]), w.name+"/direct")
			}
		})
	}
}

// connect times connect().
func connect(to netip.AddrPort, note func(time.Duration)) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written to it
	at := &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}
	begin := time.Now()
	err = unix.Connect(fd, at)
	note(time.Since(begin))
	return err
}

// BenchmarkChange replaces the endpoints of one Service of many, in maps and rules.
func BenchmarkChange(b *testing.B) {
	for _, n := range []int{1000, 10_000, 100_000} {
		b.Run(fmt.Sprint(n, " Services"), func(b *testing.B) {
			l := lab.New(b, lab.Options{Cgroups: true})
			p := open(b, l.NodeA)
			if err := p.Refresh(b.Context()); err != nil {
				b.Fatal(err)
			}
			first := planetest.Compile(services(n, 0), route.Options{})
			began := time.Now()
			write(b, p, first)
			load := time.Since(began)
			name := cluster.Name{Namespace: "ns", Name: "svc-5"}
			was, is := first.Table.Services[name], planetest.Compile(services(10, 3), route.Options{}).Table.Services[name]
			for b.Loop() {
				first.Table.Services[name] = is
				write(b, p, route.Change{Table: first.Table, Touched: []route.Touch{{Name: name, Old: was, New: is}}})
				was, is = is, was
			}
			b.ReportMetric(load.Seconds(), "first-load-s")
		})
	}
}
