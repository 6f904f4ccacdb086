//go:build linux

package endurance

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/test/machine"
)

// edit is a change of Sluice's rules by another program.
type edit struct {
	name  string
	by    string // beginning of the process name that Sluice logs, variant nft only
	apply func(x *tables)
	check func(x *tables) error // additional check; may be nil
}

// edits are made with programs of the variant.
func edits() []edit {
	command := func(argv ...string) func(*tables) { return func(x *tables) { x.run(argv...) } }
	return []edit{
		{"flush table nat", "iptables", command("iptables", "-t", "nat", "-F"), nil},
		{"flush table nat, IPv6", "ip6tables", command("ip6tables", "-t", "nat", "-F"), nil},
		{"flush a chain", "iptables", command("iptables", "-t", "nat", "-F", "KUBE-SERVICES"), nil},
		{
			"insert a rule at the beginning", "iptables",
			command("iptables", "-t", "nat", "-I", "KUBE-POSTROUTING", "-j", "RETURN"), nil,
		},
		{"delete a jump", "iptables-", func(x *tables) {
			x.restore("iptables", "*nat\n-D PREROUTING "+x.jump("nat", "PREROUTING", "KUBE-SERVICES")+"\nCOMMIT\n")
		}, nil},
		{"delete a chain", "iptables-", func(x *tables) {
			x.restore("iptables", "*nat\n-D POSTROUTING "+x.jump("nat", "POSTROUTING", "KUBE-POSTROUTING")+
				"\n-F KUBE-POSTROUTING\n-X KUBE-POSTROUTING\nCOMMIT\n")
		}, nil},
		{"reorder jumps", "iptables-", func(x *tables) { x.moveJump("KUBE-PROXY-FIREWALL", "192.0.2.1") }, nil},
		{
			"move a jump behind a foreign rule", "iptables-",
			func(x *tables) { x.moveJump("KUBE-EXTERNAL-SERVICES", "192.0.2.2") }, checkJumpsFirst,
		},
		{"flush table filter", "iptables", command("iptables", "-F"), nil},
	}
}

// moveJump moves a jump to the end of FORWARD and appends a foreign rule: in a legacy table,
// Sluice does not soon detect edits that keep the size of the table.
func (x *tables) moveJump(target, from string) {
	x.Helper()
	jump := x.jump("filter", "FORWARD", target)
	x.restore("iptables", "*filter\n-D FORWARD "+jump+"\n-A FORWARD "+jump+"\n-A FORWARD -s "+from+" -j DROP\nCOMMIT\n")
}

// checkJumpsFirst verifies that Sluice's jumps precede a foreign rule that would accept
// packets before they reach the jumps.
func checkJumpsFirst(x *tables) error {
	out, err := x.runProgram("", "iptables", "-S", "FORWARD")
	at, ours := strings.Index(out, foreignRule), strings.LastIndex(out, "-j KUBE-")
	if err == nil && (at < 0 || at < ours) {
		err = fmt.Errorf("the foreign rule precedes a jump of Sluice, or is missing:\n%s", out)
	}
	return err
}

// nftEdits are made with nft, in which the tables of iptables-nft are visible.
func nftEdits() []edit {
	command := func(argv ...string) func(*tables) { return func(x *tables) { x.lab.NodeA.MustRun(argv...) } }
	return []edit{
		{"delete a table", "nft", command("nft", "delete", "table", "ip", "nat"), nil},
		{"flush the ruleset", "nft", command("nft", "flush", "ruleset"), nil},
	}
}

func TestEditsOfIptablesAreRepaired(t *testing.T) {
	t.Parallel()
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			t.Parallel()
			x := newTestEnv(t).iptables(variant)
			x.write("many.json", many(100, 0))
			d := x.startDaemon()
			d.waitSynced(101)
			d.checkRepairs(x, edits())
			d.checkForeignChanges(x)
			if variant == "nft" { // a new process, in which no earlier edit delays repairs
				d.kill()
				d = x.startDaemon()
				d.waitSynced(101)
				d.checkRepairs(x, nftEdits())
			}
			x.checkDiff()
			d.checkAlive()
		})
	}
}

// checkRepairs makes edits, each of which must be detected and undone.
func (d *daemon) checkRepairs(x *tables, all []edit) {
	x.Helper()
	open, want := x.openConns(), x.content()
	most := time.Duration(0)
	for i, e := range all {
		repaired := x.repairs()
		e.apply(x)
		began, after := time.Now(), x.content().others
		took := x.waitRepaired(want, repaired, began)
		x.checkConns(open)
		x.Logf("%s: repaired in %v", e.name, took.Round(time.Millisecond))
		most = max(most, took)
		if diff := cmp.Diff(after, x.content().others); diff != "" {
			x.Errorf("%s: foreign rules changed (-before, +after):\n%s", e.name, diff)
		}
		if e.check != nil {
			x.must(e.check(x))
		}
		if n := d.log.count(repairMessage); n != i+1 {
			x.Errorf("%s: %d edits are logged, want %d:\n%s", e.name, n, i+1, d.log)
		}
		by := fmt.Sprintf(`by="%s`, e.by)
		if x.variant == "nft" && !strings.Contains(lastWith(d.log.String(), repairMessage), by) {
			x.Errorf("%s: the log lacks %s:\n%s", e.name, by, d.log)
		}
	}
	limit := machine.Scale(2 * time.Second)
	if x.variant == "legacy" {
		limit += poll
	}
	if most > limit {
		x.Errorf("a repair took %v, want less than %v", most, limit)
	}
}

// lastWith returns the last line that contains a text.
func lastWith(log, text string) string {
	last := ""
	for line := range strings.Lines(log) {
		if strings.Contains(line, text) {
			last = line
		}
	}
	return last
}

// waitVerified waits until the last write is a comparison that found the legacy tables as they
// should be: a periodic one, or one for an edit that had been repaired before it was reported.
func (x *tables) waitVerified() {
	x.Helper()
	x.eventually(func() error {
		s, err := x.status()
		if last := s.LastSync; err == nil && (last.Cause != "period" && last.Cause != "foreign-edit" || last.Steps > 0) {
			err = fmt.Errorf("the last write was at %s, with cause %s and %d steps", last.At, last.Cause, last.Steps)
		}
		return err
	})
}

// checkForeignChanges verifies that changes of other programs, such as Docker, to their own chains do not count as
// edits of Sluice's, and in variant nft cause no comparison. A final edit of Sluice's rules, which causes one, shows
// that all changes have been processed.
func (d *daemon) checkForeignChanges(x *tables) {
	x.Helper()
	if x.variant == "legacy" {
		// Only the comparison that verifies a write of Sluice detects an edit right after that write.
		x.waitVerified()
	}
	want, before, logged := x.content(), x.counter(comparisons), len(d.log.String())
	for _, line := range []string{
		"-t nat -N DOCKER", "-t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER",
		"-t nat -A DOCKER -i docker0 -j RETURN",
		"-t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE", "-N DOCKER-USER", "-I FORWARD -j DOCKER-USER",
		"-A DOCKER-USER -j RETURN", "-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
		"-D FORWARD -j DOCKER-USER", "-F DOCKER-USER", "-X DOCKER-USER",
	} {
		x.run(append([]string{"iptables"}, strings.Fields(line)...)...)
	}
	repaired, began := x.repairs(), time.Now()
	x.run("iptables", "-t", "nat", "-F", "KUBE-SERVICES")
	x.waitRepaired(want, repaired, began)
	if n := x.counter(comparisons) - before; n > 1 && x.variant == "nft" {
		x.Errorf("%d comparisons, want one, for the edit of Sluice's rules:\n%s", n, d.log)
	}
	if since := d.log.String()[logged:]; strings.Contains(since, "DOCKER") || strings.Count(since, repairMessage) != 1 {
		x.Errorf("foreign rules were treated as Sluice's:\n%s", since)
	}
	d.checkAlive()
}
