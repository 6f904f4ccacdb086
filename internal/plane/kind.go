package plane

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Kind is everything that the rest of the program knows about one data plane. Each
// plane returns its own from a function Kind in its folder. Mode, Probe, Open,
// Preview and Facts are needed; a field that is nil, false or empty otherwise means
// that the plane does not need it.
//
// A plane that stands on another takes the Kind of that one as a parameter, calls its
// functions, and names its mode in On.
type Kind struct {
	Mode  string // its name in the configuration
	On    string // the mode of the plane that it stands on, whose rules are needed as well
	Facts Facts  // for explanations

	// Owned names what belongs to the plane in the kernel, for people who have to keep
	// other programs off it: "the tables \"sluice\"".
	Owned string

	// Persistent means that Services are served while the process is down.
	Persistent bool

	// PartialSyncs means that the kube-proxy of this mode has metrics of full and
	// partial syncs.
	PartialSyncs bool

	// Probe reports whether this kernel and this process can do what the plane needs.
	// It tries and leaves nothing behind. The error has a sentence with the remedy for
	// each problem and wraps probe.ErrPrivilege or probe.ErrFeature.
	Probe func(ctx context.Context, netns int) (Support, error)

	// Open opens the plane for the life of the process. It writes no rules.
	Open func(context.Context, Setup) (*Opened, error)

	// Preview returns a plane over a mechanism in memory that holds nothing. It needs
	// no privilege.
	Preview func(Setup) Plane

	// Excess returns the size of a Service that the plane does not program, and the
	// limit with its reason. Empty: the Service is small enough.
	Excess func(*route.Service) (size, limit string)

	// Remove removes all rules of the plane, also those of earlier runs, and returns a
	// few words for each thing that it removed. Nil: the rules have kube-proxy's names,
	// and the take-over removes them.
	Remove func(context.Context, Setup) (removed []string, err error)

	// Prepare changes the host in a way that takes more privilege than serving does;
	// Cleanup undoes that and what the parts of the plane did to the host. Several
	// kinds may share a Cleanup: it succeeds if nothing is left to do.
	Prepare func(context.Context, Setup) error
	Cleanup func(context.Context, Setup) (lines []string, err error)
}

// Support is what a host supports.
type Support struct {
	IPv4, IPv6 bool
	Notes      []string // why a family is not served, one sentence each
}

// Families returns the families that are supported.
func (s Support) Families() []route.Family {
	var all []route.Family
	if s.IPv4 {
		all = append(all, route.IPv4)
	}
	if s.IPv6 {
		all = append(all, route.IPv6)
	}
	return all
}

// Setup is what a plane is opened with.
type Setup struct {
	Config   *config.Config
	NetNS    int // file descriptor of the network namespace to serve; 0: the current one
	Families []route.Family
	Log      *slog.Logger

	// Local lists the addresses of this host.
	Local func(context.Context) ([]netip.Addr, error)

	// Report is called with problems of objects that a part of the plane finds. It may
	// be nil.
	Report func([]route.Problem)
}

// Opened is a plane with all that works beside it.
type Opened struct {
	Plane Plane
	Load  Load // what one write contains
	Parts []Part

	// Reader returns another plane over the same mechanism, which another goroutine uses
	// to compare what is there with what should be. The caller calls done at the end.
	Reader func(context.Context) (reader Plane, done func(), err error)

	// Due returns when the plane has something to write although nothing changed, such
	// as the end of a drain; zero: never. The loop calls it after each write, and at
	// that time passes Plan a change that touches no Service. After that write Due
	// returns a later time, or zero.
	Due func() time.Time

	// WriteFailed is called after each attempt to write that failed.
	WriteFailed func()

	// WatchTrouble returns why edits by other programs are found only by comparing
	// everything now and then; empty: they are found at once.
	WatchTrouble func() string

	// KubeProxyRules are the mechanisms in which the rules of the plane have
	// kube-proxy's names, as package takeover spells them.
	KubeProxyRules []string

	How string // completes "rules are written", for people; empty: there is nothing to add

	Close func() error // called last; nil: nothing is open
}

// Part works beside the rules of a plane: it ends stale connections, or carries
// traffic itself. Each field may be nil.
type Part struct {
	// Run runs beside the loop until the context ends, once.
	Run func(context.Context) error

	// Follower is notified of each change that was written.
	Follower Follower

	// SetLocal is called with all addresses of this host, whenever they change.
	SetLocal func([]netip.Addr)

	// Metrics are the metrics that no other plane has, one family each.
	Metrics []prometheus.Collector

	Close func() error // called after Run has returned, or in its place
}

// Follower is notified of a change once it is written. Applied returns at once.
type Follower interface{ Applied(route.Change) }

// Metrics returns the metrics of all parts.
func (o *Opened) Metrics() []prometheus.Collector {
	var all []prometheus.Collector
	for _, p := range o.Parts {
		all = append(all, p.Metrics...)
	}
	return all
}

// Poll implements Watch for a mechanism that reports no edits: each period it
// reports that there may have been one, until the context ends.
func Poll(ctx context.Context, period time.Duration, subscribed func(), report func(Edit)) error {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	subscribed()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			report(Edit{Possible: true})
		}
	}
}
