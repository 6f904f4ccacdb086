//go:build linux

package endurance

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/test/harness"
)

// firewall is a real firewalld on node A, with its own D-Bus. All interfaces are in the zone "trusted", as
// recommended for interfaces of pods.
type firewall struct {
	x   *tables
	dir string
	end func()
}

const busConfig = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>%s</listen><auth>EXTERNAL</auth><policy context="default">
<allow send_destination="*"/><allow receive_sender="*"/><allow own="*"/></policy></busconfig>
`

// firewall starts the D-Bus of a firewalld with a backend, "iptables" or "nftables".
func (x *tables) firewall(backend string) *firewall {
	x.Helper()
	for _, program := range []string{"firewalld", "firewall-cmd", "dbus-daemon"} {
		if _, err := exec.LookPath(program); err != nil {
			x.Fatalf("%v: install it with make setup-test", err)
		}
	}
	f := &firewall{x: x, dir: x.tempDir()}
	x.must(os.Mkdir(filepath.Join(f.dir, "etc"), 0o755))
	x.must(os.WriteFile(filepath.Join(f.dir, "etc", "firewalld.conf"),
		[]byte("DefaultZone=trusted\nFirewallBackend="+backend+"\nCleanupModulesOnExit=no\nIPv6_rpfilter=no\n"), 0o644))
	config := filepath.Join(f.dir, "bus.conf")
	x.must(os.WriteFile(config, fmt.Appendf(nil, busConfig, f.bus()), 0o644))
	_, err := x.lab.NodeA.Start(exec.Command("dbus-daemon", "--nofork", "--nopidfile", "--config-file="+config))
	x.must(err)
	x.eventually(func() error {
		_, err := os.Stat(filepath.Join(f.dir, "bus"))
		return err
	})
	return f
}

func (f *firewall) bus() string { return "unix:path=" + filepath.Join(f.dir, "bus") }

// start starts firewalld with the iptables programs of the variant, and waits until it is running.
func (f *firewall) start() {
	f.x.Helper()
	nft, err := exec.LookPath("xtables-nft-multi")
	f.x.must(err)
	variant, err := exec.LookPath("xtables-" + f.x.variant + "-multi")
	f.x.must(err)
	cmd := exec.Command("unshare", "--mount", "sh", "-c",
		`mount --bind "$0" "$1" && touch /run/xtables.lock && mount --bind "$2" /run/xtables.lock &&
exec firewalld --nofork --nopid --system-config "$3" --log-target console`,
		variant, nft, f.x.lock, filepath.Join(f.dir, "etc")) // firewalld does not pass its environment to programs
	log := &harness.Log{}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), "DBUS_SYSTEM_BUS_ADDRESS="+f.bus())
	wait, err := f.x.lab.NodeA.Start(cmd)
	f.x.must(err)
	f.x.eventually(func() error {
		if out, err := f.firewallCmd("--state"); err != nil {
			if strings.Contains(out, "failed") {
				f.mustFirewallCmd("--reload")
			}
			return fmt.Errorf("%s %w; the log of firewalld:\n%s", out, err, log)
		}
		return nil
	})
	f.end = func() {
		f.x.must(cmd.Process.Signal(syscall.SIGTERM))
		_ = wait() // it ends with a signal error
	}
}

func (f *firewall) firewallCmd(args ...string) (string, error) {
	return f.x.lab.NodeA.Run("", append([]string{"env", "DBUS_SYSTEM_BUS_ADDRESS=" + f.bus(), "firewall-cmd"}, args...)...)
}

// mustFirewallCmd runs firewall-cmd, and retries if ebtables-restore failed: unlike
// iptables-restore, the one of iptables 1.8.9 does not retry after a concurrent write.
func (f *firewall) mustFirewallCmd(args ...string) {
	f.x.Helper()
	f.x.eventually(func() error {
		_, err := f.firewallCmd(args...)
		if err != nil && !strings.Contains(err.Error(), "ebtables-restore") {
			f.x.Fatal(err)
		}
		return err
	})
}

// After each start and reload of firewalld Sluice restores its rules, and does not change the rules of firewalld.
func TestFirewalldBesideIptables(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ variant, backend string }{
		{"nft", "iptables"}, {"legacy", "iptables"}, {"nft", "nftables"},
	} {
		t.Run(c.variant+", firewalld by "+c.backend, func(t *testing.T) {
			t.Parallel()
			testFirewalld(newTestEnv(t).iptables(c.variant), c.backend)
		})
	}
}

func testFirewalld(x *tables, backend string) {
	f := x.firewall(backend)
	d := x.startDaemon("-v=2")
	d.waitSynced(1)
	want, open, flushes := x.content(), x.openConns(), 0
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"start firewalld", f.start},
		{"reload", func() { f.mustFirewallCmd("--reload") }},
		{"complete reload", func() { f.mustFirewallCmd("--complete-reload") }},
		{"restart firewalld", func() { f.end(); f.start() }},
	} {
		before := x.repairs()
		step.do()
		n := d.waitRestored(x, want) - before
		flushes += n
		x.waitStable(want)
		x.checkConns(open)
		x.Logf("%s: %d repairs", step.name, n)
		if has := len(x.content().others) > 10; has != (backend == "iptables") {
			x.Errorf("%s: firewalld has rules in iptables: %t", step.name, has)
		}
	}
	if flushes == 0 {
		x.Errorf("firewalld caused no repair")
	}
	x.checkDiff()
	d.checkAlive()
}

// waitRestored waits until Sluice's rules are restored, and returns the number of repairs so far.
func (d *daemon) waitRestored(x *tables, want content) int {
	x.Helper()
	x.eventually(func() error {
		now := x.content()
		if diff := cmp.Diff([2][]string{want.jumps, want.rules}, [2][]string{now.jumps, now.rules}); diff != "" {
			return fmt.Errorf("rules were not restored (-want, +got):\n%s", diff)
		}
		return nil
	})
	d.waitSynced(1) // so that the repair is counted
	return x.repairs()
}

// waitStable edits Sluice's rules, which are repaired after all edits of firewalld, and waits until
// no further comparison happens.
func (x *tables) waitStable(want content) {
	x.Helper()
	repaired, began := x.repairs(), time.Now()
	x.run("iptables", "-t", "nat", "-F", "KUBE-SERVICES")
	x.waitRepaired(want, repaired, began)
	if x.variant == "legacy" {
		x.waitVerified() // a repair of an earlier edit would come first
		return
	}
	x.eventually(func() error {
		before := x.counter(comparisons)
		for range 6 { // a repair would begin after four times the CPU time of a comparison
			x.checkDiff()
		}
		if x.counter(comparisons) != before {
			return errors.New("comparisons continue")
		}
		return nil
	})
}
