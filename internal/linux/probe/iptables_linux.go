package probe

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/process"
)

// extension is a match, target or table of iptables.
type extension struct {
	name   string
	table  string
	rule   string // %s is an address or network
	config string // kernel configuration that brings it, without CONFIG_; %s is the family
	module string // that has it, where it is one

	optional bool // its absence is no error
}

func extensions(variant iptables.Variant) []extension {
	all := []extension{
		{name: "table nat", table: "nat", config: "%s_NF_NAT", module: "iptable_nat"},
		{name: "table filter", table: "filter", config: "%s_NF_FILTER", module: "iptable_filter"},
		{name: "table mangle", table: "mangle", config: "%s_NF_MANGLE", module: "iptable_mangle"},
	}
	if variant == iptables.NFT {
		all = []extension{
			{name: "table nat", table: "nat", config: "NFT_NAT", module: "nft_chain_nat"},
			{name: "table filter", table: "filter", config: "NF_TABLES", module: "nf_tables"},
			{name: "extensions in nf_tables", rule: "-m addrtype --dst-type LOCAL", config: "NFT_COMPAT", module: "nft_compat"},
		}
	}
	match := func(name, options string) extension {
		return extension{
			name: "match " + name, rule: "-m " + name + options,
			config: "NETFILTER_XT_MATCH_" + strings.ToUpper(name), module: "xt_" + name,
		}
	}
	recent := match("recent", " --name SLUICE-PROBE --rcheck --seconds 1 --reap")
	recent.optional = true
	sctp := match("sctp", " --dport 1")
	sctp.rule, sctp.optional = "-p sctp "+sctp.rule, true
	return append(
		all,
		extension{name: "match tcp", rule: "-p tcp -m tcp --dport 1", config: "NETFILTER_XTABLES", module: "xt_tcpudp"},
		extension{name: "match udp", rule: "-p udp -m udp --dport 1", config: "NETFILTER_XTABLES", module: "xt_tcpudp"},
		match("comment", ` --comment "a b"`),
		match("conntrack", " --ctstate RELATED,ESTABLISHED,DNAT"),
		match("addrtype", " --dst-type LOCAL"),
		match("mark", " --mark 0x4000/0x4000"),
		match("statistic", " --mode random --probability 0.5"),
		extension{
			name: "target MARK", rule: "-j MARK --or-mark 0x4000", config: "NETFILTER_XT_TARGET_MARK", module: "xt_mark",
		},
		extension{
			name: "target MASQUERADE --random-fully", rule: "-j MASQUERADE --random-fully",
			config: "NETFILTER_XT_TARGET_MASQUERADE", module: "xt_MASQUERADE",
		},
		extension{
			name: "target DNAT", rule: "-p tcp -j DNAT --to-destination %s:1", config: "NETFILTER_XT_NAT", module: "xt_nat",
		},
		extension{
			name: "target REJECT", table: "filter", rule: "-j REJECT", config: "%s_NF_TARGET_REJECT", module: "ipt_REJECT",
		},
		recent, sctp,
	)
}

// remedy returns advice.
func (e extension) remedy(f xtFamily) string {
	config, module := e.config, e.module
	if strings.Contains(config, "%s") {
		config = fmt.Sprintf(config, f.config)
	}
	if f.family == iptables.IPv6 {
		module = strings.NewReplacer("iptable_", "ip6table_", "ipt_", "ip6t_").Replace(module)
	}
	return fmt.Sprintf("load it with: modprobe %s, or use a kernel with CONFIG_%s", module, config)
}

// xtFamily has the differences between the families.
type xtFamily struct {
	family  iptables.Family
	name    string
	config  string // begin of kernel configuration names
	address string
}

func xtFamilies() [2]xtFamily {
	return [2]xtFamily{
		{iptables.IPv4, "IPv4", "IP", "192.0.2.1"},
		{iptables.IPv6, "IPv6", "IP6", "[2001:db8::1]"},
	}
}

// Iptables checks the programs of iptables, the right to use them, and matches and targets. The error has a sentence
// with the remedy for each problem, one per line, and is ErrPrivilege or ErrFeature, or iptables.ErrMissing without any
// program. A host without IPv6 or without optional extensions is no error.
//
// It tries rules in a temporary network namespace. If this process may not make one, the programs only test the rules
// in the namespace of the options, which detects less.
func Iptables(ctx context.Context, opts Options) (Support, error) {
	tools, err := iptables.Open(ctx, iptables.Options{NetNS: opts.NetNS})
	if errors.Is(err, unix.EPERM) {
		return Support{}, mayNot("CAP_NET_ADMIN")
	}
	if err != nil {
		return Support{}, err
	}
	if err := capable(tools.Variant()); err != nil {
		return Support{}, err
	}
	restore, end := trial(tools)
	defer end()
	missing := func(f xtFamily) ([]Missing, error) {
		return missingExtensions(f, tools.Variant(), func(all ...extension) error {
			return restore(ctx, f.family, []byte(input(f, all)))
		})
	}
	ip4, err := missing(xtFamilies()[0])
	if err != nil {
		return Support{}, err
	}
	noPrograms := ""
	if !tools.Has(iptables.IPv6) {
		noPrograms = "the programs of ip6tables are not installed: install the package iptables"
	}
	return Support{IPv4: true, Missing: ip4}.withIPv6(opts, noPrograms, func() ([]Missing, error) {
		return missing(xtFamilies()[1])
	})
}

// missingExtensions returns the optional extensions that are missing in a family, and an error for each other one.
func missingExtensions(
	f xtFamily, variant iptables.Variant, try func(...extension) error,
) (missing []Missing, err error) {
	err = check("iptables in "+f.name, extensions(variant), try, func(one extension, err error) error {
		_, refused := errors.AsType[*iptables.RestoreError](err)
		switch {
		case !refused && !strings.HasPrefix(one.name, "table "):
			return fmt.Errorf("try iptables %s in %s: %w", one.name, f.name, err)
		case one.optional:
			missing = append(missing, Missing{Name: one.name, Family: f.name, Remedy: one.remedy(f)})
			return nil
		}
		return fmt.Errorf("%w: iptables %s in %s: %s (%w)", ErrFeature, one.name, f.name, one.remedy(f), err)
	})
	return missing, err
}

// capable checks the capabilities of this thread, which the programs inherit. The legacy variant opens a raw socket.
func capable(variant iptables.Variant) error {
	has, err := process.Capabilities()
	if err != nil {
		return err
	}
	if !slices.Contains(has, "CAP_NET_ADMIN") {
		return mayNot("CAP_NET_ADMIN")
	}
	if variant == iptables.Legacy && !slices.Contains(has, "CAP_NET_RAW") {
		return mayNot("CAP_NET_RAW")
	}
	return nil
}

func mayNot(capability string) error {
	return fmt.Errorf("%w: the programs of iptables need the capability %s: "+
		"run as root, or grant it (in a pod: securityContext.capabilities.add: [NET_ADMIN, NET_RAW])",
		ErrPrivilege, capability)
}

// trial returns a function that tries rules, and one that ends the trial.
func trial(tools *iptables.Tools) (
	restore func(ctx context.Context, f iptables.Family, input []byte) error, end func(),
) {
	fd, err := temporaryNetNS()
	if err != nil {
		return tools.Test, func() {}
	}
	return tools.In(fd).Restore, func() { _ = unix.Close(fd) }
}

// temporaryNetNS creates a network namespace that lives as long as the file descriptor.
func temporaryNetNS() (fd int, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
			fd, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
	}()
	<-done
	return fd, err
}

// input returns a chain for each extension, named by its index.
func input(f xtFamily, all []extension) string {
	var b strings.Builder
	for i, e := range all {
		table := e.table
		if table == "" {
			table = "nat"
		}
		rule := e.rule
		if strings.Contains(rule, "%s") {
			rule = fmt.Sprintf(rule, f.address)
		}
		fmt.Fprintf(&b, "*%s\n:SLUICE-PROBE-%d - [0:0]\n", table, i)
		if rule != "" {
			fmt.Fprintf(&b, "-A SLUICE-PROBE-%d %s\n", i, rule)
		}
		b.WriteString("COMMIT\n")
	}
	return b.String()
}
