//go:build linux

package conformance

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/test/lab"
)

// rules reads and changes the rules of a plane on a host with the programs that an administrator has.
type rules interface {
	// frontends returns at least all entries that match frontends, sorted.
	frontends(h *lab.Host) ([]string, error)

	// flush deletes all rules.
	flush(h *lab.Host) error

	// remaining returns all rules of the plane's kind, on a host without rules of other programs; empty if there are none.
	remaining(h *lab.Host) (string, error)
}

// nftRules are the rules of nftables mode.
type nftRules struct{}

func (nftRules) frontends(h *lab.Host) ([]string, error) {
	var words []string
	for _, family := range []string{"ip", "ip6"} {
		text, err := h.Run("", "nft", "list", "map", family, "sluice", "fronts")
		if err != nil {
			return nil, err
		}
		words = append(words, strings.Fields(strings.ReplaceAll(text, ",", " "))...)
	}
	slices.Sort(words)
	return words, nil
}

func (nftRules) flush(h *lab.Host) error {
	_, err := h.Run("", "nft", "flush", "ruleset")
	return err
}

// remaining leaves out the tables of iptables-nft, and the table that guards loopback
// addresses, which belongs to no plane.
func (nftRules) remaining(h *lab.Host) (string, error) {
	tables, err := h.Run("", "nft", "list", "tables")
	var left []string
	for line := range strings.Lines(tables) {
		w := strings.Fields(line) // table ip sluice
		if len(w) == 3 && !slices.Contains([]string{"filter", "nat", "mangle", "raw", "security", "sluice-localnet"}, w[2]) {
			left = append(left, strings.Join(w, " "))
		}
	}
	return strings.Join(left, "\n"), err
}

// variant is one of the two variants of iptables, "nft" or "legacy".
type variant string

// hint is the chain by which kubelet shows other programs which variant a node uses (KEP-3178). It exists before the
// plane and stays after it.
const hint = "KUBE-IPTABLES-HINT"

// program returns the name of the iptables or ip6tables of the variant, or of a program that
// belongs to it: "-save", "-restore".
func (v variant) program(family, of string) string { return family + "-" + string(v) + of }

func programs() [2]string { return [...]string{"iptables", "ip6tables"} }

// lockOf returns the path of a host's xtables lock. Hosts of the lab share /run, so each needs its own file.
func lockOf(h *lab.Host) string { return fmt.Sprintf("/run/xtables-%d.lock", h.NetNSFD()) }

// run runs a program with the lock file of the host.
func (v variant) run(h *lab.Host, input, program string, args ...string) (string, error) {
	return h.Run(input, append([]string{"env", "XTABLES_LOCKFILE=" + lockOf(h), program}, args...)...)
}

// runBoth runs the same command for both families.
func (v variant) runBoth(h *lab.Host, args ...string) error {
	var all error
	for _, family := range programs() {
		_, err := v.run(h, "", v.program(family, ""), append([]string{"-w"}, args...)...)
		all = errors.Join(all, err)
	}
	return all
}

// add adds rules for both families.
func (v variant) add(h *lab.Host, rules string) error {
	var all error
	for _, family := range programs() {
		_, err := v.run(h, rules, v.program(family, "-restore"), "-w", "--noflush")
		all = errors.Join(all, err)
	}
	return all
}

// createHint creates the chain that says which variant the host uses.
func (v variant) createHint(h *lab.Host) error {
	saved, err := v.run(h, "", v.program("iptables", "-save"), "-t", "mangle")
	if err != nil || strings.Contains(saved, hint) {
		return err
	}
	return v.runBoth(h, "-t", "mangle", "-N", hint)
}

// save lists the chains and rules of both families in their order, without built-in chains and counters.
func (v variant) save(h *lab.Host) ([]string, error) {
	var lines []string
	for _, family := range programs() {
		text, err := v.run(h, "", v.program(family, "-save"))
		if err != nil {
			return nil, err
		}
		table := ""
		for line := range strings.Lines(text) {
			line = strings.TrimSpace(line)
			switch {
			case strings.HasPrefix(line, "*"):
				table = family + " " + line[1:] + " "
			case strings.HasPrefix(line, "-A"), strings.HasPrefix(line, ":") && strings.Contains(line, " - "):
				name, _, _ := strings.Cut(line, " - [")
				lines = append(lines, table+name)
			}
		}
	}
	return lines, nil
}

func (v variant) frontends(h *lab.Host) ([]string, error) {
	lines, err := v.save(h)
	slices.Sort(lines)
	return lines, err
}

// flush removes all rules and chains, except in the table of the hint. It replaces each
// table as a whole: the proxy repairs the first rules before a second command could come.
func (v variant) flush(h *lab.Host) error {
	var all error
	for _, family := range programs() {
		_, err := v.run(h, "*filter\nCOMMIT\n*nat\nCOMMIT\n", v.program(family, "-restore"), "-w")
		all = errors.Join(all, err)
	}
	return all
}

// remaining leaves out the hint, and KUBE-FIREWALL, which kubelet creates too.
func (v variant) remaining(h *lab.Host) (string, error) {
	lines, err := v.save(h)
	lines = slices.DeleteFunc(lines, func(line string) bool {
		return strings.Contains(line, hint) || strings.Contains(line, "KUBE-FIREWALL")
	})
	return strings.Join(lines, "\n"), err
}
