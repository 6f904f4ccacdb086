package inspect

import (
	"context"
	"fmt"
	"iter"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
	"github.com/sluice-proxy/sluice/internal/traffic"
)

// Flows lists the conntrack table: traffic.Lister.
type Flows interface {
	Listing(ctx context.Context, routes *route.Snapshot) (*traffic.Listing, error)
	Load() (entries, limit uint64, err error)
}

// Client is an address that has opened connections through this node.
type Client struct {
	Client  netip.Addr `json:"client"`
	Entries uint64     `json:"conntrackEntries"` // of connections to any destination, also of closed ones
	Share   float64    `json:"conntrackShare"`   // of the table
	Live    uint64     `json:"live"`

	// Namespace and Service name the Service to which it has the most entries; empty: to none.
	Namespace string `json:"namespace,omitempty"`
	Service   string `json:"service,omitempty"`
}

// Clients lists the clients with the most entries in conntrack, the heaviest first, whose Service a filter matches.
func (i *Inspector) Clients(ctx context.Context, f Filter) (iter.Seq[Client], error) {
	s, err := i.selectServices(ctx, f)
	if err != nil {
		return nil, err
	}
	l, err := i.listing(ctx, s.Routes)
	if err != nil {
		return nil, fmt.Errorf("list clients: %w", err)
	}
	return func(yield func(Client) bool) {
		for _, c := range l.Clients {
			client := Client{c.Addr, c.Entries, l.Share(c.Entries), c.Live, c.Service.Namespace, c.Service.Name}
			if f.matches(c.Service) && !yield(client) {
				return
			}
		}
	}, nil
}

// Rows returns a row.
func (c Client) Rows() []text.Row {
	service := c.Service
	if service != "" {
		service = c.Namespace + "/" + service
	}
	return []text.Row{{Cells: []text.Cell{
		{"CLIENT", c.Client.String()},
		{"ENTRIES", decimal(c.Entries)},
		{"TABLE", percent(c.Share)},
		{"LIVE", decimal(c.Live)},
		{"TOP-SERVICE", service},
	}}}
}

// Conntrack is the state of the conntrack table.
type Conntrack struct {
	At        time.Time `json:"at,omitzero"` // when it was listed
	Entries   uint64    `json:"entries"`
	Limit     uint64    `json:"limit,omitempty"`     // 0: there is none
	Accounted bool      `json:"accounted,omitempty"` // it counts bytes
	Warnings  []string  `json:"warnings,omitempty"`  // who holds too much of it, one sentence each
	Error     string    `json:"error,omitempty"`     // why it cannot be listed
}

// Conntrack returns the state of the conntrack table.
func (i *Inspector) Conntrack(ctx context.Context) (Conntrack, error) {
	v, err := i.view(ctx)
	if err != nil {
		return Conntrack{}, err
	}
	l, err := i.listing(ctx, v.Routes)
	if err != nil {
		return Conntrack{Error: err.Error()}, nil
	}
	return Conntrack{
		At: l.At, Entries: l.Held, Limit: l.Limit, Accounted: l.Accounted, Warnings: pressure(l, named),
	}, nil
}

const (
	full  = 0.5  // the part of the limit from which on it matters who holds the table
	heavy = 0.25 // the part of the table that is too much for one
)

// named returns a client as a warning names it.
func named(client netip.Addr) string { return "client " + client.String() }

// unnamed hides the client: a status is public, addresses are not.
func unnamed(netip.Addr) string { return "one client (sluice top clients names it)" }

// pressure returns who holds more than a quarter of a table that is more than half full.
func pressure(l *traffic.Listing, name func(netip.Addr) string) (all []string) {
	if !halfFull(l.Held, l.Limit) {
		return nil
	}
	warn := func(who string, entries uint64) {
		if part := l.Share(entries); part > heavy {
			all = append(all, fmt.Sprintf("%s holds %.0f%% of the conntrack table, which is %.0f%% full; when it is full, "+
				"new connections are dropped", who, math.Round(100*part), 100*float64(l.Held)/float64(l.Limit)))
		}
	}
	if len(l.Clients) > 0 {
		warn(name(l.Clients[0].Addr), l.Clients[0].Entries)
	}
	service, entries := l.Heaviest()
	warn("Service "+service.String(), entries)
	return slices.Clip(all)
}

// halfFull reports whether a table is more than half full.
func halfFull(entries, limit uint64) bool { return limit > 0 && float64(entries) > full*float64(limit) }

// pressed returns the warnings about the conntrack table for the status. It lists the table only if that is more than
// half full.
func (i *Inspector) pressed(ctx context.Context, routes *route.Snapshot) []string {
	if i.opt.Flows == nil {
		return nil
	}
	entries, limit, err := i.opt.Flows.Load()
	if err != nil || !halfFull(entries, limit) {
		return nil
	}
	l, err := i.listing(ctx, routes)
	if err != nil {
		return nil
	}
	return pressure(l, unnamed)
}
