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
	name   string
	config string // kernel configuration that brings it; "_" at the end stands for the family
	since  string // kernel version; "": before 5.4

	// add adds objects that need the feature to a table.
	add func(tx *nft.Tx, t nft.Table)
}

func (f feature) remedy(in nft.Family) string {
	config := f.config
	if strings.HasSuffix(config, "_") {
		config += strings.ToUpper(familyName(in))
	}
	if f.since == "" {
		return "use a kernel with " + config
	}
	return fmt.Sprintf("use kernel %s or newer with %s", f.since, config)
}

// features returns all features that NFTables checks, in the order of its messages.
func features() []feature {
	return []feature{
		{name: "NAT chains", config: "CONFIG_NFT_NAT", add: func(tx *nft.Tx, t nft.Table) {
			addChain(tx, t, nat(nft.Prerouting))
			addChain(tx, t, nat(nft.Output))
		}},
		{name: "connection tracking state", config: "CONFIG_NFT_CT", add: inChain(filter(), nft.Translated())},
		{name: "random numbers (numgen)", config: "CONFIG_NFT_NUMGEN", add: inChain(filter(), nft.Draw(1, 3))},
		{name: "address type look-ups (fib)", config: "CONFIG_NFT_FIB_", add: inChain(filter(), nft.ToHere())},
		{name: "masquerade fully-random", config: "CONFIG_NFT_MASQ", add: inChain(nat(nft.Postrouting), nft.Masquerade())},
		{name: "reject in prerouting", config: "CONFIG_NFT_REJECT", since: "5.9", add: func(tx *nft.Tx, t nft.Table) {
			addChain(tx, t, filter(), nft.Reject(t.Family))
		}},
		{name: "dnat to a map of address and port", config: "CONFIG_NFT_NAT", since: "5.7", add: addTranslation},
		{name: "verdict maps", config: "CONFIG_NF_TABLES", add: addVerdictMap},
		{name: "sets that packets add to, with timeouts", config: "CONFIG_NF_TABLES", add: addDynamicMap},
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
