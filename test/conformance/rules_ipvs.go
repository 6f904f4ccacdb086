//go:build linux

package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/linux/ipset"
	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
	"github.com/sluice-proxy/sluice/internal/linux/rtnl"
	"github.com/sluice-proxy/sluice/internal/takeover"
	"github.com/sluice-proxy/sluice/test/lab"
)

// ipvsRules are the rules of ipvs mode: virtual servers, the interface with their addresses,
// ipsets, and rules of iptables.
type ipvsRules struct{ variant }

// frontends returns the virtual servers, and the rules of iptables.
func (r ipvsRules) frontends(h *lab.Host) ([]string, error) {
	lines, err := r.variant.frontends(h)
	servers, listErr := ipvs.New(h.NetNSFD()).List(context.Background())
	for _, s := range servers {
		lines = append(lines, s.String())
	}
	slices.Sort(lines)
	return lines, errors.Join(err, listErr)
}

// flush removes the rules of iptables, the interface and all virtual servers.
func (r ipvsRules) flush(h *lab.Host) error {
	ctx := context.Background()
	table := ipvs.New(h.NetNSFD())
	servers, err := table.Servers(ctx)
	err = errors.Join(err, r.variant.flush(h), rtnl.New(h.NetNSFD()).Delete(ctx, takeover.ServiceDevice))
	for _, s := range servers {
		err = errors.Join(err, table.Delete(ctx, s))
	}
	return err
}

// remaining returns virtual servers, sets, and the remaining rules of iptables.
func (r ipvsRules) remaining(h *lab.Host) (string, error) {
	ctx := context.Background()
	text, err := r.variant.remaining(h)
	servers, listErr := ipvs.New(h.NetNSFD()).Servers(ctx)
	sets, setErr := ipset.New(h.NetNSFD()).Names(ctx)
	if len(servers)+len(sets) > 0 {
		text += fmt.Sprintf("\n%v\n%v", servers, sets)
	}
	if _, err := rtnl.New(h.NetNSFD()).Addresses(ctx, takeover.ServiceDevice); err == nil {
		text += "\n" + takeover.ServiceDevice
	}
	return strings.TrimPrefix(text, "\n"), errors.Join(err, listErr, setErr)
}
