//go:build linux

package endurance

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/kubechain"
	"github.com/sluice-proxy/sluice/test/lab"
)

// poll is how often Sluice looks at tables of the legacy variant: a tenth of
// syncPeriod.
const (
	poll       = time.Second
	syncPeriod = 10 * poll
)

// tables is a world in which Sluice runs in mode iptables, by one variant.
type tables struct {
	*world
	variant string
	lock    string // file of the lock, this world's own
}

// iptables makes a world with what kubelet leaves on a host of a variant.
func (w *world) iptables(variant string) *tables {
	w.Helper()
	x := &tables{world: w, variant: variant, lock: filepath.Join(w.folder(), "xtables.lock")}
	w.must(os.WriteFile(x.lock, nil, 0o600))
	x.restore("iptables", "*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n*filter\n-A FORWARD "+alien+"\nCOMMIT\n")
	w.args = append(w.args, "--proxy-mode=iptables", "--iptables-sync-period="+syncPeriod.String())
	return x
}

// alien is a rule of others in FORWARD.
const alien = "-s 192.0.2.0/24 -j ACCEPT"

// begin starts Sluice with the world's own lock.
func (x *tables) begin(args ...string) *daemon {
	x.Helper()
	return x.start(launch{hardship: ownLock + x.lock}, args...)
}

// run runs a program of the variant, named as without it, as others do.
func (x *tables) run(argv ...string) {
	x.Helper()
	_, err := x.other("", argv...)
	x.must(err)
}

// restore gives rules to the variant's own PROGRAM-restore.
func (x *tables) restore(program, rules string) {
	x.Helper()
	_, err := x.other(rules, program+"-restore", "--noflush")
	x.must(err)
}

// other runs a program under the name that the variant has for it. That of
// legacy waits for the world's lock.
func (x *tables) other(input string, argv ...string) (string, error) {
	first, rest, isSuffixed := strings.Cut(argv[0], "-")
	switch {
	case isSuffixed:
		argv = append([]string{first + "-" + x.variant + "-" + rest}, argv[1:]...)
	case strings.HasSuffix(first, "tables"):
		argv = append([]string{first + "-" + x.variant}, argv[1:]...)
	}
	return x.lab.NodeA.Run(input, append([]string{"env", "XTABLES_LOCKFILE=" + x.lock}, argv...)...)
}

// content is what both families hold: what is ours, of which order counts in the
// kernel's own chains alone, and what is others'.
type content struct{ jumps, rules, others []string }

var counters = regexp.MustCompile(`\[\d+:\d+\]`)

func (x *tables) content() content {
	x.Helper()
	var c content
	for _, program := range []string{"iptables", "ip6tables"} {
		out, err := x.other("", program+"-save")
		x.must(err)
		table := ""
		for line := range strings.Lines(out) {
			line = counters.ReplaceAllString(strings.TrimSpace(line), "")
			if name, ok := strings.CutPrefix(line, "*"); ok {
				table = program + " " + name + " "
			}
			chain, rest, _ := strings.Cut(strings.TrimPrefix(line, "-A "), " ")
			_, target, _ := strings.Cut(" "+rest, " -j ")
			switch {
			case ours(strings.TrimPrefix(chain, ":")):
				c.rules = append(c.rules, table+line)
			case strings.HasPrefix(line, "-A") && ours(target):
				c.jumps = append(c.jumps, table+line)
			case strings.HasPrefix(line, "-A"):
				c.others = append(c.others, table+line)
			}
		}
	}
	slices.Sort(c.rules)
	return c
}

// ours reports whether Sluice makes a chain of this name, alone or as kubelet does.
func ours(chain string) bool { return kubechain.Proxy(chain) || chain == "KUBE-FIREWALL" }

// counts reads a counter; one that is not there is 0.
func (w *world) counts(series string) int {
	w.Helper()
	text := w.metric(series)
	if text == "" {
		return 0
	}
	n, err := strconv.ParseFloat(text, 64)
	w.must(err)
	return int(n)
}

const (
	comparisons = `sluice_comparisons_total{cause="foreign-edit"}`
	mending     = `msg="Another program changed our rules, repairing them"`
)

// repairs are those of edits that were seen, and of those that a comparison after
// a write found: one that comes right after a write of a legacy table is not seen.
func (x *tables) repairs() int {
	x.Helper()
	n := 0
	for _, cause := range []string{"foreign-edit", "period"} {
		n += x.counts(`sluice_repairs_total{cause="` + cause + `"}`)
	}
	return n
}

// kept are connections that are open all along.
type kept struct {
	way  lab.Way
	flow *lab.Flow
}

// keep opens a connection in each family.
func (x *tables) keep() []kept {
	x.Helper()
	var all []kept
	for _, way := range x.ways()[:2] {
		flow, r := way.From.Open(lab.Probe{Protocol: lab.TCP, To: way.To})
		if flow == nil {
			x.Fatalf("%s: %s", way, r)
		}
		x.Cleanup(flow.Close)
		all = append(all, kept{way, flow})
	}
	return all
}

// serves makes sure that connections that are open work, and new ones do.
func (x *tables) serves(all []kept) {
	x.Helper()
	for _, k := range all {
		if r := k.flow.AskWithin([]byte("still there?"), 10*time.Second); r.Outcome != lab.Answered || !r.Echoed {
			x.Fatalf("%s: the connection that was there all along: %s", k.way, r)
		}
		x.connects(k.way)
	}
}

// mended waits until all of ours is as it was, after one repair more than
// there were, and returns how long that took.
func (x *tables) mended(was content, repaired int, since time.Time) time.Duration {
	x.Helper()
	x.eventually(func() error {
		if n := x.repairs(); n <= repaired {
			return fmt.Errorf("%d repairs, want %d", n, repaired+1)
		}
		return nil
	})
	took := time.Since(since)
	now := x.content()
	if diff := cmp.Diff([2][]string{was.jumps, was.rules}, [2][]string{now.jumps, now.rules}); diff != "" {
		x.Errorf("rules are not as they were (-before, +now):\n%s", diff)
	}
	return took
}

var errNoLine = errors.New("not there")

// jump returns the first rule of one of the kernel's own chains with this target,
// as it is saved behind the name of the chain.
func (x *tables) jump(table, chain, target string) string {
	x.Helper()
	prefix := "iptables " + table + " -A " + chain + " "
	for _, line := range x.content().jumps {
		if rest, ok := strings.CutPrefix(line, prefix); ok && strings.HasSuffix(rest, "-j "+target) {
			return rest
		}
	}
	x.Fatalf("jump from %s to %s: %v", chain, target, errNoLine)
	return ""
}
