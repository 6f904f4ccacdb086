package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

// packet is the first packet of a connection. The walker follows it through the text of
// rules, and returns every possible outcome if rules match at random.
type packet struct {
	hook     string // "PREROUTING" or "OUTPUT"
	from, to netip.Addr
	iface    string
	protocol string
	port     string
	marked   bool
	owner    string // the Service of the last rule that named one
}

func (p packet) String() string {
	return fmt.Sprintf("%s %s%s > %s:%s/%s", p.hook, p.from, p.iface, p.to, p.port, p.protocol)
}

// parsed is a parsed rule.
type parsed struct {
	from, to     netip.Prefix
	notFrom      bool
	notTo        bool
	iface        string
	notIface     bool
	protocol     string
	port         string
	fromLocal    bool
	toLocal      bool
	chance       bool // whether it matches depends on chance or on earlier packets
	marked       string
	states       string
	owner        string
	target       string
	destination  string
	unrecognised string
}

// walker follows packets through rules. It caches parsed rules.
type walker struct {
	known   map[string]*parsed
	visited map[string]bool // the names of the chains, also of missing ones, since outcomes has cleared it
	local   func(netip.Addr) bool
}

func newWalker() *walker {
	nodes := nodeAddrs()
	return &walker{known: map[string]*parsed{}, visited: map[string]bool{}, local: func(a netip.Addr) bool {
		return slices.Contains(nodes, a)
	}}
}

func nodeAddrs() []netip.Addr {
	return planetest.Addrs("192.168.0.2", "192.168.0.3", "127.0.0.1", "2001:db8::1", "::1")
}

// rule parses a rule. It ignores options that do not affect new connections to a Service,
// and records an unknown option.
func (w *walker) rule(text string) *parsed {
	if p := w.known[text]; p != nil {
		return p
	}
	p := &parsed{owner: ownerOf(text)}
	head := text
	if i := strings.Index(text, `--comment "`); i >= 0 { // the quoted text may contain spaces
		j := strings.Index(text[i+11:], `"`)
		head = text[:i] + text[i+12+j:]
	}
	not := false
	words := strings.Fields(head)
	for i := 0; i < len(words); i++ {
		value := ""
		if i+1 < len(words) {
			value = words[i+1]
		}
		switch word := words[i]; word {
		case "!":
			not = true
			continue
		case "-s":
			p.from, p.notFrom = netip.MustParsePrefix(value), not
		case "-d":
			p.to, p.notTo = netip.MustParsePrefix(value), not
		case "-i":
			p.iface, p.notIface = value, not
		case "-p":
			p.protocol = value
		case "--dport":
			p.port = value
		case "--dst-type":
			p.toLocal = true
		case "--src-type":
			p.fromLocal = true
		case "--probability":
			p.chance = true
		case "--rcheck":
			p.chance = true
			i--
		case "--mark":
			p.marked = map[bool]string{false: "yes", true: "no"}[not]
		case "--ctstate":
			p.states = value
		case "--ctreplsrcport":
			p.states = "never NEW here" // no packet of the walker is for a port of a listener
		case "-j", "-g":
			p.target = value
		case "--to-destination":
			p.destination = value
		case "-m", "--seconds", "--name", "--mode", "--reject-with", "--set-xmark", "--comment":
		case "--reap", "--set", "--random-fully":
			i--
		default:
			p.unrecognised = word
		}
		i++
		not = false
	}
	w.known[text] = p
	return p
}

// ownerOf returns the Service that a comment names: "ns/s1".
func ownerOf(rule string) string {
	_, comment, _ := strings.Cut(rule, "--comment ")
	for word := range strings.FieldsSeq(strings.ReplaceAll(comment, `"`, " ")) {
		if namespace, name, ok := strings.Cut(word, "/"); ok && (namespace == "ns" || namespace == "shop") {
			name, _, _ = strings.Cut(name, ":")
			return namespace + "/" + name
		}
	}
	return ""
}

func (p *parsed) matches(pk *packet, w *walker) bool {
	if p.from.IsValid() && p.from.Contains(pk.from) == p.notFrom || p.to.IsValid() && p.to.Contains(pk.to) == p.notTo {
		return false
	}
	if p.iface != "" {
		same := pk.iface == p.iface
		if prefix, wild := strings.CutSuffix(p.iface, "+"); wild {
			same = strings.HasPrefix(pk.iface, prefix)
		}
		if same == p.notIface {
			return false
		}
	}
	switch {
	case p.protocol != "" && p.protocol != pk.protocol, p.port != "" && p.port != pk.port:
		return false
	case p.fromLocal && !w.local(pk.from), p.toLocal && !w.local(pk.to):
		return false
	case p.marked == "yes" && !pk.marked, p.marked == "no" && pk.marked:
		return false
	case p.states != "" && p.states != "NEW":
		return false // INVALID; RELATED,ESTABLISHED
	}
	return true
}

// end is the state of a packet when it leaves a chain, with or without a verdict.
type end struct {
	packet
	verdict string // "", "ACCEPT", "DROP", "REJECT", "DNAT"
}

// chain returns all possible ends of a packet in a chain. A packet without a verdict
// continues behind the jump to the chain.
func (w *walker) chain(table iptables.Chains, name string, pk packet) []end {
	ways := []packet{pk}
	var ends []end
	w.visited[name] = true
	for _, text := range table[name].Rules {
		r := w.rule(text)
		if r.unrecognised != "" {
			return []end{{pk, "unknown option " + r.unrecognised + " in " + text}}
		}
		var on []packet
		for _, pk := range ways {
			if !r.matches(&pk, w) {
				on = append(on, pk)
				continue
			}
			if r.chance {
				on = append(on, pk)
			}
			for _, e := range w.target(table, r, pk) {
				if e.verdict == "" {
					on = append(on, e.packet)
				} else {
					ends = append(ends, e)
				}
			}
		}
		if ways = on; len(ways) == 0 {
			return ends
		}
	}
	for _, pk := range ways {
		ends = append(ends, end{packet: pk})
	}
	return ends
}

func (w *walker) target(table iptables.Chains, r *parsed, pk packet) []end {
	if r.owner != "" && r.target != "" {
		pk.owner = r.owner
	}
	switch r.target {
	case "":
		return []end{{packet: pk}}
	case "MARK":
		pk.marked = true
		return []end{{packet: pk}}
	case "DNAT":
		to := netip.MustParseAddrPort(r.destination)
		pk.to, pk.port = to.Addr(), fmt.Sprint(to.Port())
		return []end{{pk, "DNAT"}}
	case "RETURN":
		return []end{{packet: pk, verdict: "RETURN"}}
	}
	if _, there := table[r.target]; !there {
		w.visited[r.target] = true
		return []end{{pk, r.target}}
	}
	ends := w.chain(table, r.target, pk)
	for i := range ends {
		if ends[i].verdict == "RETURN" {
			ends[i].verdict = ""
		}
	}
	return ends
}

// outcome returns the possible outcomes for a packet as text, and the Service whose rules decide; "" if none.
func (w *walker) outcome(s state, pk packet) (outcome, owner string) {
	var words []string
	for _, e := range w.chain(s[nat], pk.hook, pk) {
		word := "untouched"
		if e.verdict == "DNAT" {
			word = fmt.Sprintf("%s:%s", e.to, e.port)
		} else if e.verdict != "" && e.verdict != "RETURN" && e.verdict != "ACCEPT" {
			word = e.verdict
		}
		if e.marked {
			word += " masqueraded"
		}
		if e.owner != "" {
			owner = e.owner
		}
		for _, f := range w.chain(s[filter], filterHook(pk.hook, w.local(e.to)), e.packet) {
			if f.verdict == "DROP" || f.verdict == "REJECT" {
				word = "refused"
				owner = f.owner
			}
		}
		words = append(words, word)
	}
	slices.Sort(words)
	return strings.Join(slices.Compact(words), ", "), owner
}

// outcomes returns the outcome for a packet in each of several successive states. It follows the packet again only if
// a chain on its way has changed.
func (w *walker) outcomes(states []state, changed []map[string]bool, pk packet) []string {
	list := make([]string, len(states))
	for i, s := range states {
		if i > 0 && !overlap(changed[i], w.visited) {
			list[i] = list[i-1]
			continue
		}
		clear(w.visited)
		list[i], _ = w.outcome(s, pk)
	}
	return list
}

func overlap(a, b map[string]bool) bool {
	for name := range a {
		if b[name] {
			return true
		}
	}
	return false
}

// changedChains returns the names of the chains that differ from those of the state before, by state.
func changedChains(states []state) []map[string]bool {
	list := make([]map[string]bool, len(states))
	for i := range states {
		list[i] = map[string]bool{}
		if i == 0 {
			continue
		}
		for _, of := range [][2]state{{states[i-1], states[i]}, {states[i], states[i-1]}} {
			for table, chains := range of[0] {
				for name, c := range chains {
					if d, there := of[1][table][name]; !there || !slices.Equal(c.Rules, d.Rules) {
						list[i][name] = true
					}
				}
			}
		}
	}
	return list
}

func filterHook(hook string, local bool) string {
	switch {
	case hook == "OUTPUT":
		return "OUTPUT"
	case local:
		return "INPUT"
	}
	return "FORWARD"
}
