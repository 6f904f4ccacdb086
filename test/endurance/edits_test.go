//go:build linux

package endurance

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// edit is what somebody does to our rules.
type edit struct {
	name  string
	by    string // who, as the nft variant says: the beginning of the thread's name
	does  func(x *tables)
	holds func(x *tables) error // nil: nothing but what always holds
}

// edits are made with programs of the variant.
func edits() []edit {
	command := func(argv ...string) func(*tables) { return func(x *tables) { x.run(argv...) } }
	return []edit{
		{"all of nat is flushed", "iptables", command("iptables", "-t", "nat", "-F"), nil},
		{"all of nat is flushed, IPv6", "ip6tables", command("ip6tables", "-t", "nat", "-F"), nil},
		{"a chain is flushed", "iptables", command("iptables", "-t", "nat", "-F", "KUBE-SERVICES"), nil},
		{"a rule comes first", "iptables", command("iptables", "-t", "nat", "-I", "KUBE-POSTROUTING", "-j", "RETURN"), nil},
		{"a jump is deleted", "iptables-", func(x *tables) {
			x.restore("iptables", "*nat\n-D PREROUTING "+x.jump("nat", "PREROUTING", "KUBE-SERVICES")+"\nCOMMIT\n")
		}, nil},
		{"a chain is deleted", "iptables-", func(x *tables) {
			x.restore("iptables", "*nat\n-D POSTROUTING "+x.jump("nat", "POSTROUTING", "KUBE-POSTROUTING")+
				"\n-F KUBE-POSTROUTING\n-X KUBE-POSTROUTING\nCOMMIT\n")
		}, nil},
		{"jumps change places", "iptables-", func(x *tables) { x.move("KUBE-PROXY-FIREWALL", "192.0.2.1") }, nil},
		{"a jump comes behind a rule of others", "iptables-", func(x *tables) { x.move("KUBE-EXTERNAL-SERVICES", "192.0.2.2") }, jumpsFirst},
		{"all of filter is flushed", "iptables", command("iptables", "-F"), nil},
	}
}

// move puts a jump of FORWARD at the end of it, and a rule of others behind: what
// leaves the size of a legacy table as it is would not be noticed soon.
func (x *tables) move(target, from string) {
	x.Helper()
	jump := x.jump("filter", "FORWARD", target)
	x.restore("iptables", "*filter\n-D FORWARD "+jump+"\n-A FORWARD "+jump+"\n-A FORWARD -s "+from+" -j DROP\nCOMMIT\n")
}

// jumpsFirst makes sure that our jumps are before a rule of others that would
// keep packets from them.
func jumpsFirst(x *tables) error {
	out, err := x.other("", "iptables", "-S", "FORWARD")
	at, ours := strings.Index(out, alien), strings.LastIndex(out, "-j KUBE-")
	if err == nil && (at < 0 || at < ours) {
		err = fmt.Errorf("a rule of others is in front of ours, or gone:\n%s", out)
	}
	return err
}

// nftEdits are made with nft, which has the tables of the variant.
func nftEdits() []edit {
	command := func(argv ...string) func(*tables) { return func(x *tables) { x.lab.NodeA.MustRun(argv...) } }
	return []edit{
		{"a table goes", "nft", command("nft", "delete", "table", "ip", "nat"), nil},
		{"everything goes", "nft", command("nft", "flush", "ruleset"), nil},
	}
}

func TestEditsOfIptablesAreRepaired(t *testing.T) {
	t.Parallel()
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			t.Parallel()
			x := newWorld(t).iptables(variant)
			x.write("many.json", many(100, 0))
			d := x.begin()
			d.settled(101)
			d.endures(x, edits())
			d.indifferent(x)
			if variant == "nft" { // a Sluice that has seen little
				d.kill()
				d = x.begin()
				d.settled(101)
				d.endures(x, nftEdits())
			}
			x.same()
			d.alive()
		})
	}
}

// endures makes edits, of which each is to be found and undone.
func (d *daemon) endures(x *tables, all []edit) {
	x.Helper()
	open, was := x.keep(), x.content()
	most := time.Duration(0)
	for i, e := range all {
		repaired := x.repairs()
		e.does(x)
		began, after := time.Now(), x.content().others
		took := x.mended(was, repaired, began)
		x.serves(open)
		x.Logf("%s: repaired in %v", e.name, took.Round(time.Millisecond))
		most = max(most, took)
		if diff := cmp.Diff(after, x.content().others); diff != "" {
			x.Errorf("%s: rules of others changed (-before, +now):\n%s", e.name, diff)
		}
		if e.holds != nil {
			x.must(e.holds(x))
		}
		if n := d.log.count(mending); n != i+1 {
			x.Errorf("%s: %d edits are logged, want %d:\n%s", e.name, n, i+1, d.log)
		}
		if by := fmt.Sprintf(`by="%s`, e.by); x.variant == "nft" && !strings.Contains(lastWith(d.log.String(), mending), by) {
			x.Errorf("%s: the log lacks %s:\n%s", e.name, by, d.log)
		}
	}
	limit := 2 * time.Second // of a machine that is busy with other tests
	if x.variant == "legacy" {
		limit += poll
	}
	if most > limit {
		x.Errorf("a repair took %v, want less than %v", most, limit)
	}
}

// lastWith is the last line that has a text.
func lastWith(log, text string) string {
	last := ""
	for line := range strings.Lines(log) {
		if strings.Contains(line, text) {
			last = line
		}
	}
	return last
}

// verified waits until the latest write is followed by a comparison that found the
// legacy tables as they should be.
func (x *tables) verified() {
	x.Helper()
	x.eventually(func() error {
		s, err := x.status()
		if last := s.LastSync; err == nil && (last.Cause != "period" || last.Steps > 0) {
			err = fmt.Errorf("the latest write is of %s, because of %s, with %d steps", last.At, last.Cause, last.Steps)
		}
		return err
	})
}

// indifferent: changes that other programs make to their own chains, as Docker does,
// cause no comparison. An edit of our rules after them, which causes one, shows that
// they were noticed.
func (d *daemon) indifferent(x *tables) {
	x.Helper()
	if x.variant == "legacy" {
		// An edit right after a write of ours cannot be distinguished from it. The comparison
		// that verifies the last repair follows the reading of the tables after that.
		x.verified()
	}
	was, before, logged := x.content(), x.counts(comparisons), len(d.log.String())
	for _, line := range []string{
		"-t nat -N DOCKER", "-t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER", "-t nat -A DOCKER -i docker0 -j RETURN",
		"-t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE", "-N DOCKER-USER", "-I FORWARD -j DOCKER-USER",
		"-A DOCKER-USER -j RETURN", "-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
		"-D FORWARD -j DOCKER-USER", "-F DOCKER-USER", "-X DOCKER-USER",
	} {
		x.run(append([]string{"iptables"}, strings.Fields(line)...)...)
	}
	repaired, began := x.repairs(), time.Now()
	x.run("iptables", "-t", "nat", "-F", "KUBE-SERVICES")
	x.mended(was, repaired, began)
	if n := x.counts(comparisons) - before; n > 1 {
		x.Errorf("%d comparisons, one of them because of an edit of ours:\n%s", n, d.log)
	}
	if since := d.log.String()[logged:]; strings.Contains(since, "DOCKER") {
		x.Errorf("rules of other programs were taken for ours:\n%s", since)
	}
	d.alive()
}
