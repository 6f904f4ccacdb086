package xtables

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/netns"
)

// Options says which rules are meant.
type Options struct {
	NetNS int           // file descriptor of a network namespace; 0: the current one
	Lock  string        // file that users of the legacy variant lock; "": /run/xtables.lock, as iptables
	Wait  time.Duration // how long to wait for it; 0: 5 s, as kube-proxy
}

const (
	defaultLock = "/run/xtables.lock"
	defaultWait = 5 * time.Second
)

// attempts is how often something is tried that others may disturb, with pauses
// that double from the first to the last: about three seconds in all.
const (
	attempts   = 20
	firstPause = time.Millisecond
	lastPause  = 250 * time.Millisecond
)

// Kernel is the rules of one network namespace. It keeps nothing open.
type Kernel struct{ opts Options }

// New returns the rules of a namespace.
func New(opts Options) *Kernel {
	if opts.Lock == "" {
		opts.Lock = defaultLock
	}
	if opts.Wait == 0 {
		opts.Wait = defaultWait
	}
	return &Kernel{opts: opts}
}

// Tables returns all tables of both variants and families. It makes none: a
// variant that nobody has used has no tables. In the nft variant they are the
// tables with iptables' names, whoever made them.
func (k *Kernel) Tables(ctx context.Context) ([]Table, error) {
	var tables []Table
	err := netns.Do(k.opts.NetNS, func() (err error) {
		tables, err = legacyTables(ctx)
		return err
	})
	if err == nil {
		var nft []Table
		nft, err = nftTables(ctx, k.opts.NetNS)
		tables = append(tables, nft...)
	}
	if err != nil {
		return nil, fmt.Errorf("read iptables rules: %w%s", err, remedy(err))
	}
	return tables, nil
}

// Remove takes rules and chains out. The tables of the nft variant change all
// together or not at all, each legacy table as a whole or not at all; the first
// failure does not keep it from the others. What is gone already is no error.
//
// Packets see either the old or the new table. Connections that exist stay as
// they are, as conntrack translates them and not the rules: but only while other
// rules of that family still use conntrack, since the kernel stops tracking with
// its last user. In the legacy variant the counters of the other rules are some
// microseconds late.
//
// A rule that somebody adds to a legacy table in the instant between our last
// look at it and our writing is lost, as with iptables itself, unless both can
// open the lock.
func (k *Kernel) Remove(ctx context.Context, removals ...Removal) error {
	var legacy, nft []Removal
	for _, r := range removals {
		if r.Table.Variant == NFT {
			nft = append(nft, r)
			continue
		}
		legacy = append(legacy, r)
	}
	err := errors.Join(
		removeNFT(ctx, k.opts.NetNS, nft),
		netns.Do(k.opts.NetNS, func() error { return k.removeLegacy(ctx, legacy) }),
	)
	if err != nil {
		return fmt.Errorf("remove iptables rules: %w%s", err, remedy(err))
	}
	return nil
}

// removeLegacy takes the lock once for all tables.
func (k *Kernel) removeLegacy(ctx context.Context, removals []Removal) error {
	if len(removals) == 0 {
		return nil
	}
	unlock, err := lock(ctx, k.opts)
	if err != nil {
		return err
	}
	defer unlock()
	for _, r := range removals {
		err = errors.Join(err, removeFromLegacy(ctx, r))
	}
	return err
}

// remedy says what helps, if that is known.
func remedy(err error) string {
	if errors.Is(err, fs.ErrPermission) {
		return ": run as root, or grant CAP_NET_ADMIN"
	}
	return ""
}
