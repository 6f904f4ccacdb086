// Package localnet lets NodePorts be reached on 127.0.0.1 where that is asked
// for: the kernel routes connections from there to other hosts only with
// net.ipv4.conf.all.route_localnet (Documentation/networking/ip-sysctl.rst).
// Planes keep neighbours out of 127.0.0.0/8 as long as NodePorts are served there.
package localnet

import "github.com/sluice-proxy/sluice/internal/route"

const key = "net/ipv4/conf/all/route_localnet"

// Sysctl writes a kernel parameter if it has another value.
type Sysctl interface{ Set(key, value string) error }

// Follower switches the parameter on when a change needs it. It is never
// switched off: others may rely on it by then.
type Follower struct {
	sysctl Sysctl
	report func(error)
}

// New returns a Follower. The report is told of a failure.
func New(s Sysctl, report func(error)) *Follower { return &Follower{s, report} }

// Applied looks at where NodePorts are served now.
func (f *Follower) Applied(c route.Change) {
	if c.OldHost == nil || !c.Table.Host.NodePorts.Loopback4() {
		return
	}
	if err := f.sysctl.Set(key, "1"); err != nil {
		f.report(err)
	}
}
