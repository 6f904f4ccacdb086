package preflight

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/address"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/host"
	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/linux/rtnl"
	"github.com/sluice-proxy/sluice/internal/linux/sockdiag"
	"github.com/sluice-proxy/sluice/internal/linux/sysctl"
	"github.com/sluice-proxy/sluice/internal/process"
	"github.com/sluice-proxy/sluice/internal/takeover"
)

// parameters are patterns of the kernel parameters that Judge needs, or a person who reads a bug report.
func parameters() []string {
	return []string{
		"kernel/osrelease",
		"net/bridge/bridge-nf-call-*", "net/core/somaxconn", "net/ipv4/ip_forward", "net/ipv4/ip_local_*port*",
		"net/ipv4/vs/*",
		"net/ipv4/conf/*/rp_filter", "net/ipv4/conf/*/route_localnet", "net/ipv6/conf/all/disable_ipv6",
		"net/ipv6/conf/all/forwarding",
		"net/netfilter/nf_conntrack_count", "net/netfilter/nf_conntrack_max", "net/netfilter/nf_conntrack_buckets",
		"net/netfilter/nf_conntrack_tcp_*", "net/netfilter/nf_conntrack_udp_*",
	}
}

// Read reads the facts that this host and its configuration have. What it cannot read is left out, or has an error in
// the Facts.
func Read(ctx context.Context, c *config.Config, netns int) Facts {
	f := Facts{Host: ReadHost(ctx, netns), Unprivileged: c.Unprivileged(), HardFail: c.HardFail, Detector: c.Detector}
	var err error
	f.Ports, err = servers(ctx, c, netns)
	f.PortsErr = TrialOf(err)
	if !c.Unprivileged() {
		f.Settings = host.New(host.Options{NetNS: netns}).Compare(c)
	}
	return f
}

// ReadHost reads the facts that do not depend on a configuration.
func ReadHost(ctx context.Context, netns int) Host {
	h := Host{Parameters: map[string]string{}, CPUs: host.New(host.Options{}).CPUs()}
	values := sysctl.New(sysctl.Options{NetNS: netns})
	for _, pattern := range parameters() {
		found, _ := values.Match(pattern) // a person without the right sees less
		maps.Copy(h.Parameters, found)
	}
	h.System = "Linux " + h.Parameters["kernel/osrelease"]
	list, _ := sysctl.New(sysctl.Options{}).Get("/proc/modules")
	for line := range strings.Lines(list) {
		name, _, _ := strings.Cut(line, " ")
		h.Modules = append(h.Modules, name)
	}
	h.Capabilities, _ = process.Capabilities()
	if h.Cgroup, _ = bpf.FindRoot(); h.Cgroup != "" {
		h.CgroupRoot = TrialOf(bpf.VerifyRoot(h.Cgroup))
	}
	var err error
	h.Network, err = rtnl.New(netns).Network(ctx)
	h.NetworkErr = TrialOf(err)
	h.Primary, _ = address.New(address.Options{NetNS: netns, Except: takeover.ServiceDevice}).Primary()
	return h
}

// servers returns the ports of the servers, and which process listens there.
func servers(ctx context.Context, c *config.Config, netns int) ([]Port, error) {
	listeners, err := sockdiag.Node{NetNS: netns}.Listeners(ctx)
	processes := process.New()
	var all []Port
	for _, p := range []Port{{Field: "healthzBindAddress", At: c.Healthz}, {Field: "metricsBindAddress", At: c.Metrics}} {
		if !p.At.IsValid() {
			continue
		}
		i := slices.IndexFunc(listeners, func(l sockdiag.Listener) bool { return !l.UDP() && config.Collide(l.At, p.At) })
		if p.Taken = i >= 0; p.Taken {
			pid, pidErr := processes.WithSocket(listeners[i].Inode)
			err = errors.Join(err, pidErr)
			p.PID = pid
		}
		if p.PID != 0 {
			p.Holder = cmp.Or(processes.Describe(p.PID).Program, "a process")
		}
		all = append(all, p)
	}
	return all, err
}
