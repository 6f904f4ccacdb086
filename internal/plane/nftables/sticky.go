package nftables

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net/netip"
	"strings"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/kernel/nft"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Few services remember their clients, so those may have chains of their own:
// for each pool one that asks every backend whether it knows the client, and
// else picks one; for each backend one that remembers the client and goes
// there, and a set of the clients it knows. All fronts of a port share them.

// clientsPerBackend bounds the memory of one backend. A client beyond it is
// served, but not remembered.
const clientsPerBackend = 1 << 18

// objects are the chains and sets that one service needs for itself.
type objects struct {
	chains map[string]nft.Chain
	sets   map[string]nft.Set
}

// remembering adds the chains and sets of a port that remembers its clients.
func (o *objects) remembering(f nft.Family, name cluster.Name, p *route.Port) {
	if p.Affinity == 0 {
		return
	}
	for pool := range len(pools{}) {
		backends := p.Backends(route.Pool(pool))
		if len(backends) == 0 {
			continue
		}
		chain := nft.Chain{Name: stickyChain(name, p, route.Pool(pool)), Rules: choice(f, name, p, backends)}
		o.chains[chain.Name] = chain
		for _, backend := range backends {
			o.backend(f, name, p, backend)
		}
	}
}

// choice asks every backend first, then picks one: the first of n with a
// chance of 1/n, else the next of the rest.
func choice(f nft.Family, name cluster.Name, p *route.Port, backends []netip.AddrPort) []nft.Rule {
	rules := make([]nft.Rule, 0, 2*len(backends))
	for _, b := range backends {
		rules = append(rules, nft.NewRule(nft.In(clientSet(name, p, b), nft.Source(f)), nft.Goto(endpointChain(name, p, b))))
	}
	for i, b := range backends {
		to := nft.Goto(endpointChain(name, p, b))
		if left := len(backends) - i; left > 1 {
			rules = append(rules, nft.NewRule(nft.Chance(left), to))
			continue
		}
		rules = append(rules, nft.NewRule(to))
	}
	return rules
}

func (o *objects) backend(f nft.Family, name cluster.Name, p *route.Port, b netip.AddrPort) {
	set := nft.Set{Name: clientSet(name, p, b), Key: []nft.Type{nft.Addr}, Dynamic: true, Size: clientsPerBackend}
	o.sets[set.Name] = set
	chain := nft.Chain{Name: endpointChain(name, p, b), Rules: []nft.Rule{
		nft.NewRule(nft.Remember(set.Name, nft.Source(f), p.Affinity)),
		nft.NewRule(nft.TranslateTo(b, uint8(p.Protocol))),
	}}
	o.chains[chain.Name] = chain
}

func stickyChain(name cluster.Name, p *route.Port, pool route.Pool) string {
	prefix := "sticky-"
	if pool == route.Local {
		prefix = "sticky-local-"
	}
	return prefix + label(portText(name, p))
}

func endpointChain(name cluster.Name, p *route.Port, b netip.AddrPort) string {
	return "endpoint-" + label(endpointText(name, p, b))
}

func clientSet(name cluster.Name, p *route.Port, b netip.AddrPort) string {
	return "clients-" + label(endpointText(name, p, b))
}

func portText(name cluster.Name, p *route.Port) string {
	return fmt.Sprintf("%s/%s/%s/%s", name.Namespace, name.Name, p.Protocol, p.Name)
}

func endpointText(name cluster.Name, p *route.Port, b netip.AddrPort) string {
	addr := strings.ReplaceAll(b.Addr().String(), ":", ".")
	return fmt.Sprintf("%s__%s/%d", portText(name, p), addr, b.Port())
}

// maxLabel keeps names below the kernel's limit of 255 bytes with any prefix.
const maxLabel = 230

// label makes a text a name that is unique, readable and short enough.
func label(text string) string {
	sum := sha256.Sum256([]byte(text))
	s := base32.StdEncoding.EncodeToString(sum[:])[:8] + "-" + text
	return s[:min(len(s), maxLabel)]
}
