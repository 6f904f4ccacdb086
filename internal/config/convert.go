package config

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/strict"
	"github.com/sluice-proxy/sluice/internal/text"
)

// longestMinSync bounds the time changes may wait: a longer one is a mistake.
const longestMinSync = time.Hour

// The bounds of the time between two polls for changes by other programs. The cost
// of a poll follows the number of rules.
const (
	shortestPoll = time.Second
	longestPoll  = 30 * time.Second
)

// section sets the fields that the file has for each mode. Modes without a section in v1alpha1 use the section of
// nftables. The masquerade bit of iptables, which several modes share, is checked in all modes, as in kube-proxy;
// other fields are checked in their mode only.
func (c *check) section(cfg *Config) {
	in := c.config
	path, sync, least := "nftables", in.NFTables.SyncPeriod, in.NFTables.MinSyncPeriod
	bit := c.between("iptables.masqueradeBit", in.IPTables.MasqueradeBit, 0, 31)
	cfg.MasqueradeAll = in.IPTables.MasqueradeAll
	switch cfg.Mode {
	case "iptables", userspaceMode, kernelspaceMode: // userspace has rules of iptables; HNS has no section with periods
		path, sync, least = "iptables", in.IPTables.SyncPeriod, in.IPTables.MinSyncPeriod
	case "ipvs": // shares all fields but periods with iptables
		path, sync, least = "ipvs", in.IPVS.SyncPeriod, in.IPVS.MinSyncPeriod
		cfg.IPVS, cfg.Scheduler = c.ipvs(), in.IPVS.Scheduler
	default:
		cfg.Scheduler = c.scheduler()
		bit = c.between("nftables.masqueradeBit", in.NFTables.MasqueradeBit, 0, 31)
		cfg.MasqueradeAll = in.NFTables.MasqueradeAll
	}
	if cfg.Mode == userspaceMode {
		cfg.Userspace = c.userspace()
		cfg.Scheduler = cmp.Or(c.own.Scheduler, c.scheduler())
	}
	cfg.EBPF = c.ebpf()
	cfg.MasqueradeMark = 1 << bit
	cfg.SyncPeriod = c.positive(path+".syncPeriod", sync.Duration)
	cfg.MinSyncPeriod = atLeast0(c, path+".minSyncPeriod", least.Duration)
	switch {
	case cfg.MinSyncPeriod > longestMinSync:
		c.problem(path+".minSyncPeriod", invalid(least.Duration, "must be at most 1h"))
	case cfg.SyncPeriod > 0 && cfg.MinSyncPeriod > cfg.SyncPeriod:
		most := fmt.Sprintf("must be at most %s, which is %v", c.name(path+".syncPeriod"), cfg.SyncPeriod)
		c.problem(path+".minSyncPeriod", invalid(least.Duration, most))
	}
}

// loopback returns the rule of a mode for NodePorts on loopback addresses: the mode iptables has a setting for it, ipvs
// and kernelspace cannot serve them, the others do only if they are named.
func loopback(mode string, localhost bool) route.Loopback {
	switch {
	case mode == "ipvs", mode == kernelspaceMode:
		return route.LoopbackNever
	case mode != "iptables" && mode != userspaceMode:
		return route.LoopbackNamed
	case localhost:
		return route.LoopbackIncluded
	}
	return route.LoopbackNever
}

func (c *check) client() Client {
	in := c.config.ClientConnection
	return Client{
		Kubeconfig:         in.Kubeconfig,
		Master:             c.own.Master,
		ContentType:        in.ContentType,
		AcceptContentTypes: in.AcceptContentTypes,
		QPS:                in.QPS,
		Burst:              int(atLeast0(c, "clientConnection.burst", in.Burst)),
	}
}

// The values of detectLocalMode.
const (
	clusterCIDR         = "ClusterCIDR"
	nodeCIDR            = "NodeCIDR"
	bridgeInterface     = "BridgeInterface"
	interfaceNamePrefix = "InterfaceNamePrefix"
)

// detector checks only the fields of the chosen mode.
func (c *check) detector() route.DetectorOptions {
	in, mode := c.config.DetectLocal, c.config.DetectLocalMode
	switch mode {
	case clusterCIDR:
		return route.DetectorOptions{Kind: route.DetectClusterCIDR, CIDRs: c.prefixes("clusterCIDR", c.config.ClusterCIDR)}
	case nodeCIDR:
		return route.DetectorOptions{Kind: route.DetectNodeCIDR}
	case bridgeInterface:
		name := c.device("detectLocal.bridgeInterface", in.BridgeInterface, mode)
		return route.DetectorOptions{Kind: route.DetectBridge, Interface: name}
	case interfaceNamePrefix:
		prefix := c.device("detectLocal.interfaceNamePrefix", in.InterfaceNamePrefix, mode)
		return route.DetectorOptions{Kind: route.DetectInterfacePrefix, Interface: prefix}
	}
	c.oneOf("detectLocalMode", string(mode), []string{clusterCIDR, nodeCIDR, bridgeInterface, interfaceNamePrefix})
	return route.DetectorOptions{}
}

// nodePorts reads keywords and ranges. A repeated keyword is an error; a repeated range is not, as in kube-proxy.
func (c *check) nodePorts() route.NodePortOptions {
	n := route.NodePortOptions{Loopback: loopback(string(c.config.Mode), *c.config.IPTables.LocalhostNodePorts)}
	keywords := map[string]*bool{"all": &n.All, "primary": &n.Primary, "localhost": &n.Localhost}
	for i, item := range c.config.NodePortAddresses {
		path := fmt.Sprintf("nodePortAddresses[%d]", i)
		if set, ok := keywords[item]; ok {
			if *set {
				c.problem(path, fmt.Sprintf("Duplicate value: %q", item))
			}
			*set = true
			continue
		}
		p, ok := strict.Prefix(item)
		if !ok {
			c.problem(path, invalid(item, "must be a CIDR such as 10.0.0.0/8 or fd00::/48, or one of primary, localhost, all"+
				alike(item, []string{"primary", "localhost", "all"})))
		} else if !slices.Contains(n.CIDRs, p) {
			n.CIDRs = append(n.CIDRs, p)
		}
	}
	return n
}

// scheduler returns the scheduler of the section ipvs as the default of another mode. kube-proxy ignores it there, so
// an unknown one is no error.
func (c *check) scheduler() string {
	name := c.config.IPVS.Scheduler
	if _, known := route.MethodOf(name); !known {
		c.warn("%s is ignored: %q is no scheduler that mode %s knows: expected %s",
			c.name("ipvs.scheduler"), name, c.config.Mode, text.Alternatives(route.Schedulers()))
		return ""
	}
	return name
}

func (c *check) ipvs() IPVS {
	in := c.config.IPVS
	out := IPVS{
		StrictARP:  in.StrictARP,
		TCPTimeout: atLeast0(c, "ipvs.tcpTimeout", in.TCPTimeout.Duration),
		TCPFinWait: atLeast0(c, "ipvs.tcpFinTimeout", in.TCPFinTimeout.Duration),
		UDPTimeout: atLeast0(c, "ipvs.udpTimeout", in.UDPTimeout.Duration),
	}
	for i, text := range in.ExcludeCIDRs {
		if p, ok := c.cidr(fmt.Sprintf("ipvs.excludeCIDRs[%d]", i), text); ok {
			out.ExcludeCIDRs = append(out.ExcludeCIDRs, p)
		}
	}
	return out
}

func (c *check) conntrack() Conntrack {
	in := c.config.Conntrack
	return Conntrack{
		MaxPerCore:     int(atLeast0(c, "conntrack.maxPerCore", *in.MaxPerCore)),
		Min:            int(atLeast0(c, "conntrack.min", *in.Min)),
		TCPEstablished: atLeast0(c, "conntrack.tcpEstablishedTimeout", in.TCPEstablishedTimeout.Duration),
		TCPCloseWait:   atLeast0(c, "conntrack.tcpCloseWaitTimeout", in.TCPCloseWaitTimeout.Duration),
		TCPBeLiberal:   in.TCPBeLiberal,
		UDP:            atLeast0(c, "conntrack.udpTimeout", in.UDPTimeout.Duration),
		UDPStream:      atLeast0(c, "conntrack.udpStreamTimeout", in.UDPStreamTimeout.Duration),
	}
}

func (c *check) logging() Logging {
	in := c.config.Logging
	c.oneOf("logging.format", in.Format, []string{"text", "json"})
	routing := in.Options.Text.OutputRoutingOptions
	if in.Format == "json" {
		routing = in.Options.JSON.OutputRoutingOptions
	}
	if in.Format == "json" && len(in.VModule) > 0 {
		c.problem("logging.vmodule", "Forbidden: only the text format can log by source file")
	}
	l := Logging{
		File:           c.logFile(),
		Format:         in.Format,
		Verbosity:      int(in.Verbosity),
		FlushFrequency: c.positive("logging.flushFrequency", in.FlushFrequency.Duration.Duration),
		SplitStream:    routing.SplitStream,
		InfoBufferSize: routing.InfoBufferSize.Value(),
	}
	for i, item := range in.VModule {
		path := fmt.Sprintf("logging.vmodule[%d].filePattern", i)
		switch {
		case item.FilePattern == "":
			c.problem(path, "Required value: must be a pattern for the names of source files")
		case strings.ContainsAny(item.FilePattern, "=,"):
			c.problem(path, invalid(item.FilePattern, "must not contain commas or equal signs"))
		case badPattern(item.FilePattern):
			c.warn("%s %q is not a pattern and has no effect", c.name("logging.vmodule"), item.FilePattern)
		}
		l.VModule = append(l.VModule, VModule{Pattern: item.FilePattern, Verbosity: int(item.Verbosity)})
	}
	return l
}

func badPattern(pattern string) bool {
	_, err := path.Match(pattern, "")
	return err != nil
}

// enabled reports whether a gate that is on by default is on.
func enabled(set map[string]bool, gate string) bool {
	on, ok := set[gate]
	return on || !ok
}

// dumped reports whether a program wrote the file with every field, as kubeadm does, so that an empty value means not
// set. Such a file has a period of 0, which has no meaning otherwise.
func (d *document) dumped() bool {
	if d == nil {
		return false
	}
	for path, period := range periods(&d.config) {
		if d.sets(path) && period.Duration == 0 {
			return true
		}
	}
	return false
}
