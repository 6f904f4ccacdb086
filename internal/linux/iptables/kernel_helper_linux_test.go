package iptables_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// programs are the iptables programs of both variants and families, without suffixes.
var programs = []string{"iptables-legacy", "ip6tables-legacy", "iptables-nft", "ip6tables-nft"}

// proxyChains matches the chains that the tests remove.
var proxyChains = regexp.MustCompile(`^KUBE-((SVC|SVL|EXT|FW|SEP)-.*|SERVICES|EXTERNAL-SERVICES|NODEPORTS|` +
	`POSTROUTING|MARK-MASQ|FORWARD|PROXY-FIREWALL|PROXY-CANARY)$`)

// host is a namespace in which iptables is run.
type host struct {
	t     testing.TB
	netns int
	lock  string
}

func newHost(t testing.TB) host {
	return host{t: t, netns: kerneltest.Namespace(t), lock: filepath.Join(t.TempDir(), "lock")}
}

func (h host) kernel() *iptables.Kernel {
	return iptables.NewKernel(iptables.Options{NetNS: h.netns, Lock: h.lock})
}

// run runs a program in the namespace and returns what it prints.
func (h host) run(stdin, name string, args ...string) string {
	h.t.Helper()
	var out, errs bytes.Buffer
	kerneltest.Do(h.t, h.netns, func() error {
		cmd := exec.Command(name, args...)
		cmd.Env = append(os.Environ(), "XTABLES_LOCKFILE="+h.lock, "PATH=/usr/sbin:/sbin:/usr/bin:/bin")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, errs.String())
		}
		return nil
	})
	return out.String()
}

// load restores the recorded rules with every program.
func (h host) load() {
	h.t.Helper()
	for _, program := range programs {
		family, _, _ := strings.Cut(program, "-")
		rules, err := os.ReadFile(filepath.Join("testdata", family+".save"))
		if err != nil {
			h.t.Fatal(err)
		}
		h.run(string(rules), program+"-restore", "--counters")
	}
}

// save returns all rules with their counters. It sets the counters of policies in the
// legacy variant to zero, as each change by a program resets them.
func (h host) save(program string) string {
	h.t.Helper()
	var b strings.Builder
	for line := range strings.Lines(h.run("", program+"-save", "--counters")) {
		if strings.HasSuffix(program, "-legacy") {
			line = policyCounters.ReplaceAllString(line, "$1 [0:0]")
		}
		if !strings.HasPrefix(line, "#") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// saveAll returns the rules of all programs.
func (h host) saveAll() string {
	h.t.Helper()
	var b strings.Builder
	for _, program := range programs {
		fmt.Fprintf(&b, "# %s\n%s", program, h.save(program))
	}
	return b.String()
}

func (h host) outlines() []iptables.Outline {
	h.t.Helper()
	tables, err := h.kernel().Outlines(h.t.Context(), iptables.AllRules)
	if err != nil {
		h.t.Fatal(err)
	}
	return tables
}

var (
	policyCounters = regexp.MustCompile(`^(:\S+ (?:ACCEPT|DROP)) \[.*\]`)

	chainLine = regexp.MustCompile(`^:(\S+)`)
	ruleLine  = regexp.MustCompile(`^(?:\[\d+:\d+\] )?-A (\S+)(.*)`)
	target    = regexp.MustCompile(` -[jg] (\S+)`)
)

// strip returns saved rules without the proxy chains and the jumps to them. It edits the text.
func strip(saved string) string {
	var b strings.Builder
	for line := range strings.Lines(saved) {
		var names []string
		if m := chainLine.FindStringSubmatch(line); m != nil {
			names = m[1:]
		}
		if m := ruleLine.FindStringSubmatch(line); m != nil {
			names = m[1:2]
			if to := target.FindStringSubmatch(m[2]); to != nil {
				names = append(names, to[1])
			}
		}
		if !slices.ContainsFunc(names, proxyChains.MatchString) {
			b.WriteString(line)
		}
	}
	return b.String()
}

// parse parses the output of iptables-save of one variant and family.
func parse(saved string, id iptables.TableID) []iptables.Outline {
	var tables []iptables.Outline
	for line := range strings.Lines(saved) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "*"); ok {
			id.Name = name
			tables = append(tables, iptables.Outline{TableID: id})
		}
		if m := chainLine.FindStringSubmatch(line); m != nil {
			t := &tables[len(tables)-1]
			t.Chains = append(t.Chains, iptables.ChainOutline{Name: m[1], Builtin: !strings.Contains(line, " - ")})
		}
		if m := ruleLine.FindStringSubmatch(line); m != nil {
			add(&tables[len(tables)-1], m[1], m[2])
		}
	}
	return tables
}

func add(t *iptables.Outline, chain, text string) {
	named := func(name string) func(iptables.ChainOutline) bool {
		return func(c iptables.ChainOutline) bool { return c.Name == name }
	}
	var r iptables.RuleOutline
	if m := target.FindStringSubmatch(text); m != nil {
		r.Target = m[1]
		r.Jump = slices.ContainsFunc(t.Chains, named(m[1]))
	}
	i := slices.IndexFunc(t.Chains, named(chain))
	t.Chains[i].Rules = append(t.Chains[i].Rules, r)
}

// removals returns the removals of all proxy chains.
func removals(tables []iptables.Outline) []iptables.Removal {
	var all []iptables.Removal
	for _, t := range tables {
		r := iptables.Removal{Table: t.TableID, Handle: t.Handle}
		for _, chain := range t.Chains {
			if proxyChains.MatchString(chain.Name) {
				r.Chains = append(r.Chains, chain.Name)
				continue
			}
			for _, rule := range chain.Rules {
				if rule.Jump && proxyChains.MatchString(rule.Target) {
					r.Rules = append(r.Rules, iptables.ChainRule{Chain: chain.Name, RuleOutline: rule})
				}
			}
		}
		all = append(all, r)
	}
	return all
}
