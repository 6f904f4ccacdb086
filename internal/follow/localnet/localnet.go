// Package localnet lets NodePorts be reached on 127.0.0.1 where that is asked
// for: the kernel routes connections from there to other hosts only with
// net.ipv4.conf.all.route_localnet (Documentation/networking/ip-sysctl.rst).
// Planes keep neighbours out of 127.0.0.0/8 as long as NodePorts are served there.
package localnet

import (
	"errors"
	"fmt"

	"github.com/sluice-proxy/sluice/internal/route"
)

const key = "net/ipv4/conf/all/route_localnet"

// Sysctl reads kernel parameters, and writes those that have another value.
type Sysctl interface {
	Get(key string) (string, error)
	Set(key, value string) error
}

// Follower switches the parameter on when NodePorts come to be served on
// 127.0.0.1, and off when they no longer are. One that is found on although
// nothing needs it is only told: it may be another program's.
type Follower struct {
	sysctl Sysctl
	report func(error)
	began  bool
}

// New returns a Follower. The report is told of a failure, and of a parameter
// that somebody left on.
func New(s Sysctl, report func(error)) *Follower { return &Follower{sysctl: s, report: report} }

// Applied looks at where NodePorts are served now.
func (f *Follower) Applied(c route.Change) {
	first := !f.began
	f.began = true
	if err := f.follow(c, first); err != nil {
		f.report(err)
	}
}

func (f *Follower) follow(c route.Change, first bool) error {
	serves := c.Table.Host.NodePorts.Loopback4()
	switch {
	case c.OldHost == nil && !first:
		return nil
	case serves:
		if err := f.sysctl.Set(key, "1"); err != nil {
			return fmt.Errorf("NodePorts on 127.0.0.1 will not work: %w", err)
		}
		return nil
	case !first && c.OldHost.NodePorts.Loopback4():
		return f.sysctl.Set(key, "0")
	case first:
		return LeftOn(f.sysctl)
	}
	return nil
}

// errLeftOn says what is wrong with a parameter that nothing of ours needs.
var errLeftOn = errors.New("net.ipv4.conf.all.route_localnet is 1 though NodePorts are not served on 127.0.0.1: " +
	"neighbours can reach what listens there; set it to 0 unless another program needs it")

// LeftOn returns an error if the parameter is on. It is of use where NodePorts
// are not served on 127.0.0.1, so that nothing keeps neighbours out.
func LeftOn(s Sysctl) error {
	value, err := s.Get(key)
	if err != nil || value != "1" {
		return nil // a kernel without the parameter lets nobody in
	}
	return errLeftOn
}
