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

// firewall is a real firewalld on node A, with a bus of its own. All interfaces
// are in the zone "trusted", as those of pods are to be.
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

// firewall starts the bus.
func (x *tables) firewall(backend string) *firewall {
	x.Helper()
	for _, program := range []string{"firewalld", "firewall-cmd", "dbus-daemon"} {
		if _, err := exec.LookPath(program); err != nil {
			x.Fatalf("%v: make setup-test brings it", err)
		}
	}
	f := &firewall{x: x, dir: x.folder()}
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

// start starts firewalld, which takes iptables for that of the variant, and waits
// until it runs.
func (f *firewall) start() {
	f.x.Helper()
	nft, err := exec.LookPath("xtables-nft-multi")
	f.x.must(err)
	variant, err := exec.LookPath("xtables-" + f.x.variant + "-multi")
	f.x.must(err)
	cmd := exec.Command("unshare", "--mount", "sh", "-c",
		`mount --bind "$0" "$1" && touch /run/xtables.lock && mount --bind "$2" /run/xtables.lock &&
exec firewalld --nofork --nopid --system-config "$3" --log-target console`,
		variant, nft, f.x.lock, filepath.Join(f.dir, "etc")) // it gives its programs no environment
	log := &harness.Log{}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), "DBUS_SYSTEM_BUS_ADDRESS="+f.bus())
	wait, err := f.x.lab.NodeA.Start(cmd)
	f.x.must(err)
	f.x.eventually(func() error {
		if out, err := f.ask("--state"); err != nil {
			if strings.Contains(out, "failed") {
				f.must("--reload")
			}
			return fmt.Errorf("%s %w; firewalld says:\n%s", out, err, log)
		}
		return nil
	})
	f.end = func() {
		f.x.must(cmd.Process.Signal(syscall.SIGTERM))
		_ = wait() // it ends by the signal
	}
}

func (f *firewall) ask(args ...string) (string, error) {
	return f.x.lab.NodeA.Run("", append([]string{"env", "DBUS_SYSTEM_BUS_ADDRESS=" + f.bus(), "firewall-cmd"}, args...)...)
}

// must makes firewalld do something; again, if its ebtables-restore failed: when
// somebody else writes meanwhile, that of iptables 1.8.9 does not begin anew, as
// iptables-restore does.
func (f *firewall) must(args ...string) {
	f.x.Helper()
	f.x.eventually(func() error {
		_, err := f.ask(args...)
		if err != nil && !strings.Contains(err.Error(), "ebtables-restore") {
			f.x.Fatal(err)
		}
		return err
	})
}

// Firewalld flushes and reloads, and each time our rules are back, once and for
// all: its own are not fought.
func TestFirewalldBesideIptables(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ variant, backend string }{
		{"nft", "iptables"}, {"legacy", "iptables"}, {"nft", "nftables"},
	} {
		t.Run(c.variant+", firewalld by "+c.backend, func(t *testing.T) {
			t.Parallel()
			testFirewalld(newWorld(t).iptables(c.variant), c.backend)
		})
	}
}

func testFirewalld(x *tables, backend string) {
	f := x.firewall(backend)
	d := x.begin("-v=2")
	d.settled(1)
	was, open, flushes := x.content(), x.keep(), 0
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"firewalld starts", f.start},
		{"it reloads", func() { f.must("--reload") }},
		{"it reloads completely", func() { f.must("--complete-reload") }},
		{"it is started again", func() { f.end(); f.start() }},
	} {
		before := x.repairs()
		step.do()
		n := d.restored(x, was) - before
		flushes += n
		x.calm(was)
		x.serves(open)
		x.Logf("%s: %d repairs", step.name, n)
		if has := len(x.content().others) > 10; has != (backend == "iptables") {
			x.Errorf("%s: firewalld has rules in iptables: %t", step.name, has)
		}
	}
	if flushes == 0 {
		x.Errorf("firewalld flushed nothing")
	}
	x.same()
	d.alive()
}

// restored waits until all of ours is as it was, and returns the repairs so far.
func (d *daemon) restored(x *tables, was content) int {
	x.Helper()
	x.eventually(func() error {
		now := x.content()
		if diff := cmp.Diff([2][]string{was.jumps, was.rules}, [2][]string{now.jumps, now.rules}); diff != "" {
			return fmt.Errorf("rules are not as they were (-before, +now):\n%s", diff)
		}
		return nil
	})
	d.settled(1) // so the repair is counted
	return x.repairs()
}

// calm makes an edit of ours, which is repaired after all edits of firewalld, and waits
// until nothing is compared any more.
func (x *tables) calm(was content) {
	x.Helper()
	repaired, began := x.repairs(), time.Now()
	x.run("iptables", "-t", "nat", "-F", "KUBE-SERVICES")
	x.mended(was, repaired, began)
	if x.variant == "legacy" {
		x.verified() // a repair of an edit would come first
		return
	}
	x.eventually(func() error {
		before := x.counts(comparisons)
		for range 6 { // a repair would begin after four times the CPU time of a comparison
			x.same()
		}
		if x.counts(comparisons) != before {
			return errors.New("it goes on repairing")
		}
		return nil
	})
}
