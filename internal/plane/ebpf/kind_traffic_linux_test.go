package ebpf_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/ebpf"
	"github.com/sluice-proxy/sluice/internal/plane/nftables"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/internal/testing/metricstest"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
	"github.com/sluice-proxy/sluice/test/lab"
)

// countedPackets is the packet plane, which counts one connection to each of these ports.
func countedPackets(ids ...route.PortID) plane.Kind {
	kind := nftables.Kind()
	open := kind.Open
	kind.Open = func(ctx context.Context, s plane.Setup) (*plane.Opened, error) {
		opened, err := open(ctx, s)
		if err == nil {
			opened.Traffic = func(context.Context, *route.Snapshot) (plane.Counted, error) {
				all := plane.Counted{}
				for _, id := range ids {
					all[id] = plane.PortTraffic{Traffic: plane.Traffic{plane.Connections: 1}}
				}
				return all, nil
			}
		}
		return opened, err
	}
	return kind
}

// answer answers each connection to an address with that address.
func answer(t *testing.T, ns int, at netip.AddrPort) {
	t.Helper()
	var l net.Listener
	kerneltest.Do(t, ns, func() (err error) {
		l, err = net.Listen("tcp", at.String())
		return err
	})
	kerneltest.Serve(t, l, func(c net.Conn) {
		_, _ = fmt.Fprint(c, at) // the client notices errors
		_ = c.Close()
	})
}

// Real connections are counted exactly, by port and backend, and each has a duration. Those of the packet plane are
// added.
func TestTrafficOfRealConnections(t *testing.T) {
	kerneltest.NeedPrograms(t)
	at := config.EBPF{Dir: filepath.Join(lab.BPFFS(t), "sluice"), Cgroup: lab.Cgroup(t)}
	ns := kerneltest.Namespace(t)
	compiler := route.NewCompiler(route.Options{NodeName: "a", ListLocal: true})
	change, _ := compiler.Compile(planetest.EveryShape().Take())
	name := cluster.Name{Namespace: "ns", Name: "svc-3"}
	p := &change.Table.Services[name].Ports[0]
	kerneltest.Do(t, ns, func() error {
		backends := netlink.Route{
			LinkIndex: 1, Dst: &net.IPNet{IP: net.IPv4(10, 180, 0, 0), Mask: net.CIDRMask(16, 32)}, Type: unix.RTN_LOCAL,
			Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST,
		}
		return netlink.RouteAdd(&backends)
	})
	var log bytes.Buffer
	kind, setup := ebpf.Kind(countedPackets(p.ID(name))), plane.Setup{
		Config: &config.Config{MasqueradeMark: 0x4000, EBPF: at}, NetNS: ns, Families: route.Families(),
		Log: slog.New(slog.NewTextHandler(&log, nil)),
	}
	opened, err := kind.Open(t.Context(), setup)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, err := kind.Remove(context.Background(), setup)
		if err = errors.Join(err, opened.Close()); err != nil {
			t.Error(err)
		}
	})
	planetest.Load(t, opened.Plane, change)
	for _, part := range opened.Parts {
		if part.Follower != nil {
			part.Follower.Applied(change)
		}
	}
	const connections = 60
	want := plane.PortTraffic{
		Traffic:  plane.Traffic{plane.Connections: connections + 1, plane.Live: 0},
		Backends: map[netip.AddrPort]plane.BackendTraffic{},
	}
	for _, at := range p.Cluster {
		answer(t, ns, at)
		want.Backends[at] = plane.BackendTraffic{}
	}
	inside := lab.Inside(t, at.Cgroup, ns)
	for range connections {
		err := inside(func() error {
			c, err := net.Dial("tcp", netip.AddrPortFrom(p.Frontends[0].Addr, p.Frontends[0].Port).String())
			if err != nil {
				return err
			}
			by, err := io.ReadAll(c)
			of := netip.MustParseAddrPort(string(by))
			want.Backends[of] = plane.BackendTraffic{Connections: want.Backends[of].Connections + 1}
			return errors.Join(err, c.Close())
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	counted, err := opened.Traffic(t.Context(), compiler.Snapshot())
	if err != nil || len(p.Cluster) != 3 {
		t.Fatalf("%v with backends %v: %s", err, p.Cluster, &log)
	}
	if diff := cmp.Diff(plane.Counted{p.ID(name): want}, counted); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	metrics := metricstest.Values(t, metricstest.Registry(opened.Metrics()...), "sluice_service_connect_")
	line := fmt.Sprintf(`duration_seconds{namespace="ns", service="svc-3"} %d times, `, connections)
	if !strings.HasPrefix(metrics, line) || strings.Contains(metrics, "\n") {
		t.Errorf("got\n%s\nwant\n%s", metrics, line)
	}
}
