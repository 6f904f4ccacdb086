package rules

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Diff returns the difference between two dumps; empty if tables nat and filter have the same
// chains with the same rules in the same order. It ignores
//
//   - the order of different service ports where kube-proxy writes them in random order
//     (it iterates over a map), and that of the addresses with jumps to KUBE-NODEPORTS;
//   - how many blanks iptables-save prints before the name of an nfacct object;
//   - the chain KUBE-PROXY-CANARY, and built-in chains without rules and with policy ACCEPT.
func Diff(want, got Dump) string {
	var b strings.Builder
	for _, table := range []string{"filter", "nat"} {
		w, g := canonical(want[table]), canonical(got[table])
		all := maps.Clone(w)
		maps.Copy(all, g)
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if change := changes(w.lines(name), g.lines(name)); change != "" {
				fmt.Fprintf(&b, "%s %s (-want, +got):\n%s", table, name, change)
			}
		}
	}
	return b.String()
}

// lines returns a chain as Diff prints it, with one line for its existence and policy.
func (t Table) lines(name string) []string {
	c, ok := t[name]
	if !ok {
		return nil
	}
	return append([]string{"chain, policy " + c.Policy}, c.Rules...)
}

// canonical returns a table without the differences that Diff ignores.
func canonical(t Table) Table {
	out := Table{}
	for name, c := range t {
		if name == canary || c.Policy == "ACCEPT" && len(c.Rules) == 0 {
			continue
		}
		c.Rules = respaced(c.Rules)
		if isUnordered(name) {
			c.Rules = ordered(c.Rules)
		}
		out[name] = c
	}
	return out
}

const (
	// canary is the chain by whose absence kube-proxy detects that its rules were flushed. Sluice does not need it.
	canary = "KUBE-PROXY-CANARY"

	// localhostCounter is the nfacct object that counts connections to NodePorts at
	// loopback addresses, in a rule without another purpose.
	localhostCounter = "localhost_nps_accepted_pkts"
)

var counting = regexp.MustCompile(` ?-m nfacct --nfacct-name +(\S+)`)

// respaced returns rules with one blank before the name of an nfacct object.
func respaced(rules []string) []string {
	var out []string
	for _, r := range rules {
		out = append(out, counting.ReplaceAllString(r, " -m nfacct --nfacct-name $1"))
	}
	return out
}

// Unaccounted returns the rules that kube-proxy writes if the kernel lacks nfacct: without rules
// that only count, and without counting in others.
func Unaccounted(d Dump) Dump {
	out := Dump{}
	for table, chains := range d {
		out[table] = Table{}
		for name, c := range chains {
			c.Rules = unaccounted(c.Rules)
			out[table][name] = c
		}
	}
	return out
}

func unaccounted(rules []string) []string {
	var out []string
	for _, r := range rules {
		if m := counting.FindStringSubmatch(r); m != nil && m[1] == localhostCounter {
			continue
		}
		out = append(out, counting.ReplaceAllString(r, ""))
	}
	return out
}

// isUnordered reports whether kube-proxy writes the service ports of a chain in any order.
func isUnordered(chain string) bool {
	return slices.Contains([]string{
		"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-PROXY-FIREWALL",
	}, chain)
}

// ordered sorts consecutive rules of service ports by their service port. Rules of the same port keep their order.
func ordered(rules []string) []string {
	var out []string
	for rest := rules; len(rest) > 0; {
		port := servicePort(rest[0])
		n := slices.IndexFunc(rest, func(r string) bool { return (servicePort(r) == "") != (port == "") })
		if n < 0 {
			n = len(rest)
		}
		run := slices.Clone(rest[:n])
		if port == "" {
			slices.Sort(run)
		} else {
			slices.SortStableFunc(run, func(a, b string) int { return cmp.Compare(servicePort(a), servicePort(b)) })
		}
		out, rest = append(out, run...), rest[n:]
	}
	return out
}

var comment = regexp.MustCompile(`--comment (?:"([^" ]*)[^"]*"|(\S+))`)

// servicePort returns the namespace, Service and port of a rule, with which its comment begins; empty if it has none.
func servicePort(rule string) string {
	m := comment.FindStringSubmatch(rule)
	if m == nil {
		return ""
	}
	name := m[1] + m[2]
	if !strings.Contains(name, "/") {
		return ""
	}
	return name
}

// changes returns the lines to remove and to add to change one text into the other, with the
// number of equal lines between them.
func changes(from, to []string) string {
	if slices.Equal(from, to) {
		return ""
	}
	var b strings.Builder
	same := 0
	flush := func() {
		if same > 0 {
			fmt.Fprintf(&b, "    ... %d equal\n", same)
		}
		same = 0
	}
	common := longest(from, to)
	next := func(text []string) bool { return len(common) > 0 && text[0] == common[0] }
	for len(from) > 0 || len(to) > 0 {
		switch {
		case len(from) > 0 && !next(from):
			flush()
			fmt.Fprintf(&b, "  - %s\n", from[0])
			from = from[1:]
		case len(to) > 0 && !next(to):
			flush()
			fmt.Fprintf(&b, "  + %s\n", to[0])
			to = to[1:]
		default:
			from, to, common = from[1:], to[1:], common[1:]
			same++
		}
	}
	flush()
	return b.String()
}

// longest returns the longest common subsequence.
func longest(a, b []string) []string {
	length := make([][]int, len(a)+1) // of the longest common subsequence of a[i:] and b[j:]
	length[len(a)] = make([]int, len(b)+1)
	for i := len(a) - 1; i >= 0; i-- {
		length[i] = make([]int, len(b)+1)
		for j := len(b) - 1; j >= 0; j-- {
			length[i][j] = max(length[i+1][j], length[i][j+1])
			if a[i] == b[j] {
				length[i][j] = length[i+1][j+1] + 1
			}
		}
	}
	var out []string
	for i, j := 0, 0; i < len(a) && j < len(b); {
		switch {
		case a[i] == b[j]:
			out = append(out, a[i])
			i++
			j++
		case length[i+1][j] >= length[i][j+1]:
			i++
		default:
			j++
		}
	}
	return out
}
