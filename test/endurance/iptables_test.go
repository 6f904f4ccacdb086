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

// poll is how often Sluice polls tables of iptables-legacy: a tenth of syncPeriod.
const (
	poll       = time.Second
	syncPeriod = 10 * poll
)

// tables is a testEnv with Sluice in mode iptables, with the programs of one variant.
type tables struct {
	*testEnv
	variant string
	lock    string // the xtables lock of this test
}

// iptables prepares node A like kubelet does with this variant.
func (w *testEnv) iptables(variant string) *tables {
	w.Helper()
	x := &tables{testEnv: w, variant: variant, lock: filepath.Join(w.tempDir(), "xtables.lock")}
	w.must(os.WriteFile(x.lock, nil, 0o600))
	x.restore("iptables", "*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n*filter\n-A FORWARD "+foreignRule+"\nCOMMIT\n")
	w.args = append(w.args, "--proxy-mode=iptables", "--iptables-sync-period="+syncPeriod.String())
	return x
}

// foreignRule is a rule of another program in FORWARD.
const foreignRule = "-s 192.0.2.0/24 -j ACCEPT"

// startDaemon starts Sluice with the lock of this test.
func (x *tables) startDaemon(args ...string) *daemon {
	x.Helper()
	return x.start(launch{restriction: ownLock + x.lock}, args...)
}

// run runs a program of the variant, given by its name without the variant.
func (x *tables) run(argv ...string) {
	x.Helper()
	_, err := x.runProgram("", argv...)
	x.must(err)
}

// restore passes rules to the variant's PROGRAM-restore.
func (x *tables) restore(program, rules string) {
	x.Helper()
	_, err := x.runProgram(rules, program+"-restore", "--noflush")
	x.must(err)
}

// runProgram runs a program under its name in the variant. Programs of iptables-legacy wait for the lock of this test.
func (x *tables) runProgram(input string, argv ...string) (string, error) {
	first, rest, isSuffixed := strings.Cut(argv[0], "-")
	switch {
	case isSuffixed:
		argv = append([]string{first + "-" + x.variant + "-" + rest}, argv[1:]...)
	case strings.HasSuffix(first, "tables"):
		argv = append([]string{first + "-" + x.variant}, argv[1:]...)
	}
	return x.lab.NodeA.Run(input, append([]string{"env", "XTABLES_LOCKFILE=" + x.lock}, argv...)...)
}

// content are the rules of both families: jumps and rules of Sluice, and foreign rules. The
// order matters for jumps only, which are in built-in chains.
type content struct{ jumps, rules, others []string }

var counters = regexp.MustCompile(`\[\d+:\d+\]`)

func (x *tables) content() content {
	x.Helper()
	var c content
	for _, program := range []string{"iptables", "ip6tables"} {
		out, err := x.runProgram("", program+"-save")
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
			case isOwnChain(strings.TrimPrefix(chain, ":")):
				c.rules = append(c.rules, table+line)
			case strings.HasPrefix(line, "-A") && isOwnChain(target):
				c.jumps = append(c.jumps, table+line)
			case strings.HasPrefix(line, "-A"):
				c.others = append(c.others, table+line)
			}
		}
	}
	slices.Sort(c.rules)
	return c
}

// isOwnChain reports whether Sluice creates a chain of this name, alone or like kubelet.
func isOwnChain(chain string) bool { return kubechain.Proxy(chain) || chain == "KUBE-FIREWALL" }

// counter returns the value of a counter; 0 if it does not exist.
func (w *testEnv) counter(series string) int {
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
	comparisons   = `sluice_comparisons_total{cause="foreign-edit"}`
	repairMessage = `msg="Another program changed the rules of Sluice; they are repaired"`
)

// repairs counts repairs of detected edits, and those after a periodic comparison: an edit
// right after a write to a legacy table is not detected.
func (x *tables) repairs() int {
	x.Helper()
	n := 0
	for _, cause := range []string{"foreign-edit", "period"} {
		n += x.counter(`sluice_repairs_total{cause="` + cause + `"}`)
	}
	return n
}

// openConn is a connection that stays open.
type openConn struct {
	way  lab.Way
	flow *lab.Flow
}

// openConns opens a connection in each family.
func (x *tables) openConns() []openConn {
	x.Helper()
	var all []openConn
	for _, way := range x.ways()[:2] {
		flow, r := way.From.Open(lab.Probe{Protocol: lab.TCP, To: way.To})
		if flow == nil {
			x.Fatalf("%s: %s", way, r)
		}
		x.Cleanup(flow.Close)
		all = append(all, openConn{way, flow})
	}
	return all
}

// checkConns verifies that the open connections work, and that new ones succeed.
func (x *tables) checkConns(all []openConn) {
	x.Helper()
	for _, k := range all {
		if r := k.flow.AskWithin([]byte("ping"), 10*time.Second); r.Outcome != lab.Answered || !r.Echoed {
			x.Fatalf("%s: the open connection: %s", k.way, r)
		}
		x.waitConnect(k.way)
	}
}

// waitRepaired waits for one more repair than before, verifies that Sluice's rules are
// restored, and returns how long it took.
func (x *tables) waitRepaired(want content, repaired int, since time.Time) time.Duration {
	x.Helper()
	x.eventually(func() error {
		if n := x.repairs(); n <= repaired {
			return fmt.Errorf("%d repairs, want %d", n, repaired+1)
		}
		return nil
	})
	took := time.Since(since)
	now := x.content()
	if diff := cmp.Diff([2][]string{want.jumps, want.rules}, [2][]string{now.jumps, now.rules}); diff != "" {
		x.Errorf("rules were not restored (-want, +got):\n%s", diff)
	}
	return took
}

var errNoLine = errors.New("not there")

// jump returns the first rule of a built-in chain with this target, in the format of iptables-save without the chain.
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
