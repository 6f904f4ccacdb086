package userspace

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/text"
	"github.com/sluice-proxy/sluice/internal/work"
)

// Assigned are addresses that are added again when another program removed them: an assign.Assigner.
type Assigned interface {
	Addresses
	Restore(context.Context) error
	Addrs() []netip.Addr
}

// OnServices returns the plane that adds the addresses of Services to this host, and whose sockets listen
// there. It needs the privilege to change an interface, and no rules: kube-proxy's mode winuserspace.
// The function assigned finds the addresses that this run and those before it added. The lock of the machine keeps
// other processes from changing them.
func OnServices(assigned func() (Assigned, error)) plane.Kind {
	probe := func(context.Context, int) (plane.Support, error) {
		if _, err := assigned(); err != nil {
			return plane.Support{}, err
		}
		return loopbacks(), nil
	}
	const closed = "this host has the addresses of Services itself, and nothing listens at other ports"
	return plane.Kind{
		Mode: mode, Bind: config.BindRules,
		Owned: "the addresses of Services on an interface of this host, and the listening sockets of the process",
		Facts: plane.Facts{
			Name: mode, Proxied: true, Weights: true, SchedulerName: schedulerName, Without: without(plane.Refuse),
			OtherPort: plane.Behaviour{Verdict: plane.Refuse, Why: closed},
			Ping:      plane.Behaviour{Verdict: plane.Untouched, Why: "this host has the address itself, and answers"},
			Unallocated: plane.Behaviour{
				Verdict: plane.Untouched, Why: "in this mode this host has only the addresses that Services have",
			},
			Loopback: "every address of this host serves NodePorts, or the loopback address is among those that do",
		},
		Probe: probe,
		Open: func(_ context.Context, s plane.Setup) (*plane.Opened, error) {
			own, err := assigned()
			if err != nil {
				return nil, err
			}
			return openOwn(s, own)
		},
		Preview: func(s plane.Setup) plane.Plane {
			opt := options(s, loopbackAddrs(s.Families), nil)
			opt.Own = noAddresses{}
			return New(noListener, opt)
		},
		Remove: func(context.Context, plane.Setup) ([]string, error) {
			own, err := assigned()
			if err != nil {
				return nil, err
			}
			gone, err := own.Retain(nil)
			if len(gone) == 0 {
				return nil, err
			}
			return []string{text.Count(len(gone), "address") + " of Services"}, err
		},
	}
}

// openOwn opens the plane, which removes the addresses when it is closed.
func openOwn(s plane.Setup, own Assigned) (*plane.Opened, error) {
	opt := options(s, loopbackAddrs(s.Families), nil)
	opt.Own = own
	return open(s, &plane.Opened{
		Assigned: own.Addrs,
		Parts:    []plane.Part{restorePeriodically(s, own.Restore)},
		Close: func() error {
			if _, err := own.Retain(nil); err != nil {
				return fmt.Errorf("remove the addresses of Services: %w", err)
			}
			return nil
		},
	}, opt)
}

// noAddresses are the Addresses of a preview, which does not call them.
type noAddresses struct{ Addresses }

// restorePeriod is how often missing addresses are added: programs that manage the network delete those of others.
const restorePeriod = 10 * time.Second

// restorePeriodically returns a part that adds missing addresses periodically.
func restorePeriodically(s plane.Setup, add func(context.Context) error) plane.Part {
	restore := func(ctx context.Context) (time.Duration, error) { return restorePeriod, add(ctx) }
	return plane.Part{Run: work.New(restore, func(err error) {
		s.Log.Warn("Cannot restore addresses; clients do not reach Services at these addresses; retrying", "error", err)
	}).Run}
}
