package preflight

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/handover/listen"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

// node returns a namespace with the result of commands.
func node(t *testing.T, commands ...string) int {
	t.Helper()
	ns := kerneltest.Namespace(t)
	kerneltest.Do(t, ns, func() error {
		for _, c := range commands {
			words := strings.Fields(c)
			if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w\n%s", c, err, out)
			}
		}
		return nil
	})
	return ns
}

// configuration has kube-proxy's ports.
func configuration() *config.Config {
	return &config.Config{
		Mode: "nftables", Healthz: netip.MustParseAddrPort("0.0.0.0:10256"),
		Metrics:   netip.MustParseAddrPort("127.0.0.1:10249"),
		Detector:  route.DetectorOptions{Kind: route.DetectClusterCIDR},
		Conntrack: config.Conntrack{MaxPerCore: 1, Min: 1 << 30},
	}
}

// lines returns the findings about a namespace that are not ok.
func lines(t *testing.T, ns int, c *config.Config) string {
	t.Helper()
	f := Read(t.Context(), c, ns)
	var b strings.Builder
	for _, line := range Judge(f) {
		if line.Level != OK {
			c := line.Rows()[0].Cells
			fmt.Fprintf(&b, "%-7s  %-13s  %s\n", c[0][1], c[1][1], c[2][1])
		}
	}
	return b.String()
}

func wants(t *testing.T, got string, want ...string) {
	t.Helper()
	for _, line := range want {
		if !strings.Contains(got, line) {
			t.Errorf("no line %q in\n%s", line, got)
		}
	}
}

// Faults of a real network namespace become lines.
func TestFaultsOfANode(t *testing.T) {
	got := lines(t, node(t,
		"sysctl -qw net.ipv4.ip_forward=0", "sysctl -qw net.ipv4.conf.all.rp_filter=1",
		"ip link add eth0 type veth peer name far", "ip link set eth0 mtu 1400 up", "ip link set far up",
		"ip addr add 10.244.3.4/24 dev eth0", "ip route add default via 10.244.3.1",
		"ip link add cni0 type bridge", "ip link add pod type veth peer name podfar",
		"ip link set pod master cni0 mtu 1500 up",
	), func() *config.Config {
		c := configuration()
		c.Detector.CIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
		return c
	}())
	wants(t, got,
		"warning  forwarding     net.ipv4.ip_forward is 0:",
		"warning  rp_filter      strict at eth0, far, pod:",
		"warning  MTU            far of a pod has 1500, but packets to other nodes may leave by eth0, which has 1400:",
		"warning  ranges         the address 10.244.3.4 of this node is in clusterCIDR 10.244.0.0/16:",
		"warning  conntrack      net.netfilter.nf_conntrack_max is ",
		"and the configuration wants 1073741824, but this process cannot set it: ")
	if _, err := os.Stat("/proc/sys/net/bridge"); err != nil {
		wants(t, got, "warning  modules        rules do not see packets between ports of the bridge cni0:")
	}
}

func TestAPortInUseNamesItsHolder(t *testing.T) {
	ns := node(t)
	l, err := listen.Opener{NetNS: ns}.Listen(t.Context(), "tcp", netip.MustParseAddrPort("0.0.0.0:10249"))
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("warning  ports          127.0.0.1:10249 is taken by %s (pid %d); "+
		"Sluice retries until it is free; to do: stop it, or change metricsBindAddress\n", self, os.Getpid())
	wants(t, lines(t, ns, configuration()), want)
	c := configuration()
	c.HardFail = true
	wants(t, lines(t, ns, c), "stop     ports          127.0.0.1:10249 is taken by ")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if got := lines(t, ns, configuration()); strings.Contains(got, " ports ") {
		t.Errorf("the port is free, and the lines are\n%s", got)
	}
}

// Each namespace has its own facts, and reading them changes none.
func TestReadingChangesNothing(t *testing.T) {
	ns := node(t, "ip link add eth0 type veth peer name far", "ip link set eth0 up",
		"sysctl -qw net.ipv4.conf.all.rp_filter=0", "sysctl -qw net.ipv4.conf.default.rp_filter=0")
	state := func() (text string) {
		kerneltest.Do(t, ns, func() error {
			out, err := exec.Command("sh", "-c",
				"nft list ruleset; ip -o addr; ip -o link; ip route; sysctl -a --pattern ^net").Output()
			text = string(out)
			return err
		})
		return text
	}
	before := state()
	f := Read(t.Context(), configuration(), ns)
	if after := state(); after != before {
		t.Errorf("after it\n%s\nbefore\n%s", after, before)
	}
	if len(f.Network.Links) < 3 || f.Parameters["net/ipv4/conf/far/rp_filter"] == "" ||
		!strings.HasPrefix(f.System, "Linux ") {
		t.Errorf("the facts are %+v", f)
	}
	if f.NetworkErr.Err != "" || f.PortsErr.Err != "" {
		t.Errorf("not read: %q, %q", f.NetworkErr.Err, f.PortsErr.Err)
	}
}

func TestSocketsThatMeet(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"0.0.0.0:1", "127.0.0.1:1", true},
		{"[::]:1", "0.0.0.0:1", true},
		{"127.0.0.1:1", "127.0.0.1:1", true},
		{"127.0.0.1:1", "127.0.0.2:1", false},
		{"0.0.0.0:1", "0.0.0.0:2", false},
	} {
		if got := config.Collide(netip.MustParseAddrPort(c.a), netip.MustParseAddrPort(c.b)); got != c.want {
			t.Errorf("%s and %s: %v", c.a, c.b, got)
		}
	}
}
