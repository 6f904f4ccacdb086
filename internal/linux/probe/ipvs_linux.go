package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/ipset"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
	"github.com/sluice-proxy/sluice/internal/linux/rtnl"
)

// probeSet is the name of a set, and of an interface, that exist only during a probe.
const probeSet = "sluice-probe"

// IPVS checks what Iptables checks, and IPVS, ipset, the match and the target of iptables
// for sets, and dummy interfaces. It tries them where Iptables does.
func IPVS(ctx context.Context, opts Options) (Support, error) {
	support, err := Iptables(ctx, opts)
	if err != nil {
		return Support{}, err
	}
	tools, err := iptables.Open(ctx, iptables.Options{NetNS: opts.NetNS})
	if err != nil {
		return Support{}, err
	}
	at := opts.NetNS
	if fd, err := temporaryNetNS(); err == nil {
		defer func() { _ = unix.Close(fd) }() // everything in it goes
		at, tools = fd, tools.In(fd)
	}
	return support, errors.Join(
		absent(ipvs.New(at).Load(ctx), "IPVS", "ip_vs", "IP_VS"),
		trySets(ctx, ipset.New(at), tools),
		tryDevice(ctx, rtnl.New(at)),
	)
}

// absent returns the error for something that the kernel lacks, with the remedy.
func absent(err error, what, module, config string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%w: %s needs the capability CAP_NET_ADMIN: "+
			"run as root, or grant it (in a pod: securityContext.capabilities.add: [NET_ADMIN, NET_RAW])", ErrPrivilege, what)
	}
	return fmt.Errorf("%w: the kernel has no %s: load it with: modprobe %s, or use a kernel with CONFIG_%s (%w)",
		ErrFeature, what, module, config, err)
}

// trySets creates a set of each type, and rules that use sets, and removes them.
func trySets(ctx context.Context, sets *ipset.Sets, tools *iptables.Tools) error {
	var problems []error
	for _, t := range []ipset.Type{ipset.Port, ipset.IP, ipset.IPPortIP, ipset.IPPortNet, ipset.IPPort} {
		kind := ipset.Definition{Type: t, Marks: t == ipset.IPPort}
		err := sets.Apply(ctx, []ipset.Command{{Op: ipset.Create, Set: probeSet, Definition: kind}})
		if err == nil && t == ipset.IPPort {
			problems = append(problems, tryRules(ctx, tools))
		}
		module := "ip_set_" + strings.NewReplacer(":", "_", ",", "").Replace(string(t)) // ip_set_hash_ipport of hash:ip,port
		problems = append(problems, absent(err, "ipset type "+string(t), module, strings.ToUpper(module)),
			sets.Destroy(ctx, probeSet))
	}
	return errors.Join(problems...)
}

// tryRules adds rules that match a set and that map it to marks, and removes them.
func tryRules(ctx context.Context, tools *iptables.Tools) error {
	const chain = "SLUICE-PROBE"
	err := tools.Restore(ctx, iptables.IPv4, []byte("*mangle\n:"+chain+" - [0:0]\n"+
		"-A "+chain+" -m set --match-set "+probeSet+" dst,dst -j RETURN\n"+
		"-A "+chain+" -j SET --map-set "+probeSet+" dst,dst --map-mark\nCOMMIT\n"))
	gone := tools.Restore(ctx, iptables.IPv4, []byte("*mangle\n:"+chain+" - [0:0]\n-X "+chain+"\nCOMMIT\n"))
	if err == nil {
		return gone
	}
	return absent(err, "match and target of iptables for sets", "xt_set", "NETFILTER_XT_SET")
}

// tryDevice creates a dummy interface and removes it.
func tryDevice(ctx context.Context, links *rtnl.Links) error {
	return errors.Join(absent(links.Create(ctx, probeSet), "dummy interfaces", "dummy", "DUMMY"),
		links.Delete(ctx, probeSet))
}
