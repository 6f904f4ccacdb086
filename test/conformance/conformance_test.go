//go:build linux

package conformance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	kernel "github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/linux/probe"
	"github.com/sluice-proxy/sluice/internal/linux/sysctl"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/ebpf"
	"github.com/sluice-proxy/sluice/internal/plane/iptables"
	"github.com/sluice-proxy/sluice/internal/plane/ipvs"
	"github.com/sluice-proxy/sluice/internal/plane/netfilter"
	"github.com/sluice-proxy/sluice/internal/plane/nftables"
	"github.com/sluice-proxy/sluice/internal/plane/userspace"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/takeover"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

func TestMain(m *testing.M) {
	lab.Main(m)
}

func TestConformance(t *testing.T) {
	planes := []Plane{
		nftablesPlane(), ebpfPlane(), iptablesPlane("nft"), iptablesPlane("legacy"), ipvsPlane(), userspacePlane(),
	}
	for i, p := range planes {
		var err error
		if planes[i].Only, err = selected(p.Name, os.Getenv); err != nil {
			t.Fatal(err)
		}
	}
	Run(t, planes...)
}

func bothFamiliesOf() []route.Family { return route.Families() }

// withParts returns a plane with the parts of each netfilter plane.
func withParts(t testing.TB, p plane.Plane, s plane.Setup) *plane.Opened {
	parts, err := netfilter.Parts(s, nil)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return &plane.Opened{Plane: p, Parts: parts}
}

// opened opens a plane as the program does.
func opened(t testing.TB, kind plane.Kind, s plane.Setup) *plane.Opened {
	o, err := kind.Open(context.Background(), s)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return o
}

func nftablesPlane() Plane {
	return Plane{
		Name: "nftables", Traits: Nftables(), Explain: nftables.Kind().Facts,
		Others: []func() Plane{iptablesNFTPlane},
		Remove: removeTables,
		Open: func(t testing.TB, _ *lab.Host, s plane.Setup) *plane.Opened {
			return opened(t, nftables.Kind(), s)
		},
	}
}

// removeTables removes the tables of mode nftables.
func removeTables(host *lab.Host) error {
	_, err := nftables.Kind().Remove(context.Background(), plane.Setup{NetNS: host.NetNSFD(), Config: &config.Config{}})
	return err
}

// removeChains removes the rules of a plane whose chains have kube-proxy's names, as --cleanup does.
func removeChains(host *lab.Host) error {
	_, err := takeover.Cleanup(context.Background(), takeover.Options{
		NetNS: host.NetNSFD(), Log: slog.New(slog.DiscardHandler), IgnoreKubeProxy: true,
	})
	return err
}

// ebpfPlane is the plane ebpf, on top of nftables.
func ebpfPlane() Plane {
	var bpffs string
	kind := ebpf.KindTestedBy(once(probe.Sockets), nftables.Kind())
	var counters sync.Map // of open planes, by network namespace
	setupOn := func(host *lab.Host) plane.Setup {
		at := config.EBPF{Dir: filepath.Join(bpffs, fmt.Sprint("sluice-", host.NetNSFD())), Cgroup: host.Cgroup()}
		cfg := &config.Config{Mode: "ebpf", MasqueradeMark: 0x4000, EBPF: at}
		return plane.Setup{Config: cfg, NetNS: host.NetNSFD(), Families: bothFamiliesOf()}
	}
	leave := func(host *lab.Host) error {
		_, err := kind.Remove(context.Background(), setupOn(host))
		return err
	}
	return Plane{
		Decided: func(host *lab.Host) (uint64, error) {
			counter, _ := counters.Load(host.NetNSFD())
			return decidedAtSockets(counter.(*bpf.Conn))
		},
		Found: func(host, pod *lab.Host) error { return harness.Known(setupOn(host).Config.EBPF.Dir, pod) },
		Left:  func(host *lab.Host) error { return programsLeft(setupOn(host).Config.EBPF) },
		Need: func(t testing.TB) {
			kerneltest.NeedPrograms(t)
			bpffs = lab.BPFFS(t)
		},
		Leave:  leave,
		Remove: func(host *lab.Host) error { return errors.Join(leave(host), removeTables(host)) },
		Name:   "ebpf", Traits: EBPF(), Explain: kind.Facts, Sockets: true, On: "nftables",
		Others: []func() Plane{nftablesPlane},
		Open: func(t testing.TB, host *lab.Host, s plane.Setup) *plane.Opened {
			setup := setupOn(host)
			setup.Log = s.Log
			opened := opened(t, kind, setup)
			counter, err := bpf.Open(bpf.Options{
				Dir: setup.Config.EBPF.Dir, Cgroup: setup.Config.EBPF.Cgroup, NetNS: setup.NetNS,
			})
			if err != nil {
				t.Fatalf("%v", err)
			}
			counters.Store(host.NetNSFD(), counter)
			t.Cleanup(func() {
				counters.Delete(host.NetNSFD()) // it holds the programs, and a process in a guest of test/uml has 256 MB
				_ = counter.Close()             // nothing is left to lose
				if _, err := kind.Remove(context.Background(), setup); err != nil {
					t.Error(err)
				}
			})
			return opened
		},
	}
}

// decidedAtSockets returns how many connections the programs of a host have decided.
func decidedAtSockets(conn *bpf.Conn) (sum uint64, err error) {
	counts, err := conn.Counts()
	for _, n := range counts {
		sum += n
	}
	return sum, err
}

// once returns a self-test that runs the first time only: all planes have the same kernel.
func once(test func(bpf.Options) error) func(bpf.Options) error {
	var first sync.Once
	var result error
	return func(o bpf.Options) error {
		first.Do(func() { result = test(o) })
		return result
	}
}

// programsLeft returns an error if maps or pins are left, or programs that are attached to the cgroup.
func programsLeft(c config.EBPF) error {
	if _, err := os.Stat(c.Dir); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("pins are left in %s: %w", c.Dir, err)
	}
	n, err := bpf.DetachStale(c.Cgroup, nil)
	if err == nil && n > 0 {
		err = fmt.Errorf("%d programs were left in the cgroup", n)
	}
	return err
}

func iptablesNFTPlane() Plane { return iptablesPlane("nft") }

// legacyPoll is how often the plane polls tables of iptables-legacy for edits. S-277 waits for the next poll.
const legacyPoll = 50 * time.Millisecond

// iptablesPlane is the plane iptables with the programs of a variant, "nft" or "legacy".
func iptablesPlane(variant string) Plane {
	nature := Iptables(variant)
	return Plane{
		Remove: removeChains,
		Name:   "iptables-" + variant, Traits: nature, Explain: iptables.Kind().Facts,
		Others: []func() Plane{nftablesPlane},
		Open: func(t testing.TB, host *lab.Host, s plane.Setup) *plane.Opened {
			if err := nature.firewall.createHint(host); err != nil {
				t.Fatalf("%v", err)
			}
			tools, err := kernel.Open(context.Background(),
				kernel.Options{NetNS: host.NetNSFD(), Lock: lockOf(host), Poll: legacyPoll})
			if err != nil {
				t.Fatalf("find iptables: %v", err)
			}
			if got := string(tools.Variant()); got != variant {
				t.Fatalf("uses %s, because %s, want %s", got, tools.Reason(), variant)
			}
			return withParts(t, iptables.New(tools, iptables.Options{
				Families: bothFamiliesOf(), Mark: s.Config.MasqueradeMark, KeepInvalid: liberal(t, host),
			}), s)
		},
	}
}

func ipvsPlane() Plane {
	nature := IPVS("nft")
	return Plane{
		Remove: removeChains,
		Name:   "ipvs", Traits: nature, Unsupported: notInIPVS(), Explain: ipvs.Kind().Facts,
		Others: []func() Plane{nftablesPlane, ipvsPlane, iptablesNFTPlane}, // from and to each other mode
		Need:   kerneltest.NeedIPVS,
		Open: func(t testing.TB, host *lab.Host, s plane.Setup) *plane.Opened {
			if err := nature.firewall.createHint(host); err != nil {
				t.Fatalf("%v", err)
			}
			setup := plane.Setup{NetNS: host.NetNSFD(), Families: bothFamiliesOf(), Config: &config.Config{}}
			if err := ipvs.Kind().Prepare(context.Background(), setup); err != nil {
				t.Fatalf("%v", err)
			}
			tools, err := kernel.Open(context.Background(),
				kernel.Options{NetNS: host.NetNSFD(), Lock: lockOf(host), Poll: legacyPoll})
			if err != nil {
				t.Fatalf("find iptables: %v", err)
			}
			p := ipvs.New(ipvs.KernelOf(host.NetNSFD(), tools), ipvs.Options{
				Families: bothFamiliesOf(), Mark: s.Config.MasqueradeMark, KeepInvalid: liberal(t, host), Poll: legacyPoll,
			})
			opened := withParts(t, p, s)
			opened.Due = p.Due
			return opened
		},
	}
}

// userspacePlane is the plane userspace, with rules by iptables-nft.
func userspacePlane() Plane {
	nature := Userspace("nft")
	kind := userspace.Kind(iptables.PortalsKind())
	var handing, inherited sync.Map // of open planes, by network namespace
	return Plane{
		Name: "userspace", Traits: nature, Explain: kind.Facts, Unsupported: notInUserspace(),
		Remove: func(host *lab.Host) error {
			_, err := kind.Remove(context.Background(), plane.Setup{NetNS: host.NetNSFD()})
			return errors.Join(err, removeChains(host))
		},
		Others: []func() Plane{nftablesPlane},
		Open: func(t testing.TB, host *lab.Host, _ plane.Setup) *plane.Opened {
			if err := nature.firewall.createHint(host); err != nil {
				t.Fatalf("%v", err)
			}
			setup := plane.Setup{
				Config: userspaceConfig(), NetNS: host.NetNSFD(), Families: bothFamiliesOf(), Log: slog.New(slog.DiscardHandler),
			}
			if finish, reloads := inherited.LoadAndDelete(host.NetNSFD()); reloads {
				in, err := finish.(func(context.Context) (plane.Inherited, error))(t.Context())
				if err != nil {
					t.Fatalf("hand over: %v", err)
				}
				setup.Inherited = in
			}
			opened := opened(t, kind, setup)
			handing.Store(host.NetNSFD(), opened.HandOver)
			return opened
		},
		Reload: func(host *lab.Host) {
			if handOver, open := handing.LoadAndDelete(host.NetNSFD()); open {
				inherited.Store(host.NetNSFD(), handOver.(func() func(context.Context) (plane.Inherited, error))())
			}
		},
	}
}

// userspaceConfig is the configuration of the plane userspace.
func userspaceConfig() *config.Config {
	return &config.Config{
		Mode: "userspace", MasqueradeMark: 0x4000, SyncPeriod: 10 * legacyPoll,
		Userspace: config.Userspace{
			Bind: config.BindRules, FirstPort: 1024, LastPort: 65535, UDPTimeout: time.Minute, DrainTimeout: time.Minute,
		},
	}
}

// notInUserspace has the scenarios in which connections outlive the process that forwards them, and the ones of SCTP.
func notInUserspace() map[int]string {
	const noSCTP = "mode userspace does not forward SCTP"
	return map[int]string{
		273: "in mode userspace no process serves while the proxy is down",
		274: "in mode userspace connections end with a restart",
		281: "in mode userspace connections end with the mode",
		309: noSCTP, 310: noSCTP, 311: noSCTP,
	}
}

// notInIPVS has the scenarios of NodePorts at loopback addresses that a setting names.
func notInIPVS() map[int]string {
	const reason = "IPVS does not forward from loopback addresses, also not for kube-proxy"
	return map[int]string{67: reason, 68: reason, 69: reason, 71: reason}
}

// liberal reports whether nf_conntrack_tcp_be_liberal is set on a host.
func liberal(t testing.TB, host *lab.Host) bool {
	value, err := sysctl.New(sysctl.Options{NetNS: host.NetNSFD()}).Get("net/netfilter/nf_conntrack_tcp_be_liberal")
	if err != nil {
		t.Fatalf("%v", err)
	}
	return value != "0"
}
