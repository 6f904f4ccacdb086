package probe

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
)

// feature is a feature of nf_tables.
type feature struct {
	name  string
	needs string // the kernel that has it; "_" at the end stands for the family

	// add adds objects that need the feature to a table.
	add func(tx *nft.Tx, t nft.Table)
}

func (f feature) remedy(in nft.Family) string {
	if strings.HasSuffix(f.needs, "_") {
		return "use " + f.needs + strings.ToUpper(familyName(in))
	}
	return "use " + f.needs
}

// features returns all features that NFTables checks, in the order of its messages.
func features() []feature {
	return []feature{
		{"NAT chains", "a kernel with CONFIG_NFT_NAT", func(tx *nft.Tx, t nft.Table) {
			addChain(tx, t, nat(nft.Prerouting))
			addChain(tx, t, nat(nft.Output))
			addChain(tx, t, nat(nft.Input))
		}},
		{"connection tracking state", "a kernel with CONFIG_NFT_CT", inChain(filter(), nft.Translated())},
		{"random numbers (numgen)", "a kernel with CONFIG_NFT_NUMGEN", inChain(filter(), nft.Draw(1, 3))},
		{"hashes (jhash)", "a kernel with CONFIG_NFT_HASH", inChain(filter(), nft.DrawByHash(1, 1, 3, nft.L4Proto()))},
		{"address type look-ups (fib)", "a kernel with CONFIG_NFT_FIB_", inChain(filter(), nft.ToHere())},
		{"masquerade fully-random", "a kernel with CONFIG_NFT_MASQ", inChain(nat(nft.Postrouting), nft.Masquerade())},
		{"reject in prerouting", "kernel 5.9 or newer with CONFIG_NFT_REJECT", func(tx *nft.Tx, t nft.Table) {
			addChain(tx, t, filter(), nft.Reject(t.Family))
		}},
		{"dnat to a map of address and port", "kernel 5.7 or newer with CONFIG_NFT_NAT", addTranslation},
		{"verdict maps", "a kernel with CONFIG_NF_TABLES", addVerdictMap},
		{"sets that packets add to, with timeouts", "a kernel with CONFIG_NF_TABLES", addDynamicMap},
		{"sets with counters", "a kernel with CONFIG_NFT_COUNTER, or Linux 5.17 or newer", addCounters},
	}
}

func nat(at nft.Point) nft.Hook { return nft.Hook{Type: "nat", Point: at} }
func filter() nft.Hook          { return nft.Hook{Type: "filter", Point: nft.Prerouting} }

// inChain returns a function that adds a base chain with one rule.
func inChain(hook nft.Hook, rule ...nft.Statement) func(*nft.Tx, nft.Table) {
	return func(tx *nft.Tx, t nft.Table) { addChain(tx, t, hook, rule...) }
}

// addChain adds a base chain with one rule. Its name is unique in the transaction.
func addChain(tx *nft.Tx, t nft.Table, hook nft.Hook, rule ...nft.Statement) {
	c := nft.Chain{Name: fmt.Sprintf("chain-%d", tx.Size()), Hook: &hook}
	if len(rule) > 0 {
		c.Rules = []nft.Rule{nft.NewRule(rule...)}
	}
	tx.SetChain(t, c)
}

func addTranslation(tx *nft.Tx, t nft.Table) {
	end := []nft.Type{nft.Addr, nft.Port}
	ends := nft.Set{Name: "ends", Key: end, Data: end}
	sample := string(nft.Key{}.Addr(sampleAddr(t.Family)).Port(53))
	tx.AddSet(t, ends)
	tx.Add(t, ends, nft.Element{Key: sample, Data: sample})
	addChain(tx, t, nat(nft.Prerouting),
		nft.TranslateFrom(t.Family, ends.Name, nft.Destination(t.Family), nft.DestinationPort()))
}

func addVerdictMap(tx *nft.Tx, t nft.Table) {
	verdicts := nft.Set{Name: "verdicts", Key: []nft.Type{nft.Addr}, Data: []nft.Type{nft.Verdict}}
	tx.AddSet(t, verdicts)
	tx.SetChain(t, nft.Chain{Name: "target"})
	tx.Add(t, verdicts, nft.Element{Key: string(nft.Key{}.Addr(sampleAddr(t.Family))), Goto: "target"})
	addChain(tx, t, filter(), nft.Dispatch(verdicts.Name, nft.Destination(t.Family)))
}

func addDynamicMap(tx *nft.Tx, t nft.Table) {
	clients := nft.Set{Name: "clients", Key: []nft.Type{nft.Addr}, Data: []nft.Type{nft.ClassID}, Dynamic: true, Size: 16}
	tx.AddSet(t, clients)
	addChain(tx, t, filter(), nft.Remember(clients.Name, time.Minute, nft.Priority(), nft.Source(t.Family)))
}

func addCounters(tx *nft.Tx, t nft.Table) {
	counts := nft.Set{
		Name: "counts", Key: []nft.Type{nft.Addr, nft.Proto, nft.Port, nft.Index},
		Dynamic: true, Size: 16, Timeout: time.Minute,
	}
	tx.AddSet(t, counts)
	addChain(tx, t, nat(nft.Prerouting), nft.Count(counts.Name,
		nft.Destination(t.Family), nft.L4Proto(), nft.DestinationPort(), nft.Priority()))
}

// sampleAddr returns an address of a family.
func sampleAddr(f nft.Family) netip.Addr {
	if f == nft.IP4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

func familyName(f nft.Family) string {
	if f == nft.IP4 {
		return "IPv4"
	}
	return "IPv6"
}
