package iptables

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
)

// Removal is what to remove from a table that was listed: chains with all their rules, and the
// rules of other chains that lead to these.
type Removal struct {
	Table  TableID
	Handle uint64 // Outline.Handle
	Chains []string
	Rules  []ChainRule // of chains that stay
}

// Size returns how many rules and chains are named.
func (r Removal) Size() int { return len(r.Rules) + len(r.Chains) }

// ErrInUse is the error if a rule that is not removed leads to a chain that is. Nothing was removed from that table.
var ErrInUse = errors.New("the chain is in use")

// ErrBeyondReach is the error if legacy tables were not changed because this process
// lacks the programs of iptables-legacy or the capabilities to use them.
var ErrBeyondReach = errors.New("legacy tables cannot be changed from here")

// Remove removes rules and chains, which must exist. The tables of the nft variant change all together or not at all,
// by netlink; each legacy table changes as a whole or not at all, by iptables-legacy-restore. After a failure it
// continues with the other tables. Other rules keep their order and their counters, but the programs set the counters
// of policies to zero.
//
// Existing connections are not affected, as conntrack translates them, as long as other
// rules of that family use conntrack: the kernel stops tracking with its last user.
func (k *Kernel) Remove(ctx context.Context, removals ...Removal) error {
	var cuts []nft.Cut
	var errs []error
	for _, r := range removals {
		if r.Table.Variant == NFT {
			cuts = append(cuts, nft.Cut{Table: r.Table.inNFT(), Handle: r.Handle, Rules: r.Rules, Chains: r.Chains})
			continue
		}
		err := k.removeLegacy(ctx, r)
		if errors.Is(err, ErrBeyondReach) && errors.Is(errors.Join(errs...), ErrBeyondReach) {
			continue // as for the table before
		}
		errs = append(errs, err)
	}
	if len(cuts) > 0 {
		err := k.nft(func(conn *nft.Conn) error { return conn.Prune(ctx, cuts) })
		if errors.Is(err, unix.EBUSY) { // a rule or an element of a map leads to a chain
			err = fmt.Errorf("%w: %w", ErrInUse, err)
		}
		errs = append(errs, err)
	}
	err := errors.Join(errs...)
	if err != nil && !errors.Is(err, ErrBeyondReach) {
		return fmt.Errorf("remove iptables rules: %w%s", err, remedy(err))
	}
	return err
}

// input returns the input of PROGRAM-restore that removes from a legacy table. Rules are
// identified by their text, not by their number, which another program may change.
func (r Removal) input() string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%s\n", r.Table.Name)
	for _, chain := range r.Chains {
		fmt.Fprintf(&b, ":%s - [0:0]\n", chain) // takes its rules out
	}
	for _, rule := range r.Rules {
		fmt.Fprintf(&b, "-D %s %s\n", rule.Chain, rule.Text)
	}
	for _, chain := range r.Chains {
		fmt.Fprintf(&b, "-X %s\n", chain)
	}
	return b.String() + "COMMIT\n"
}

// removeLegacy removes from one legacy table.
func (k *Kernel) removeLegacy(ctx context.Context, r Removal) error {
	if r.Size() == 0 {
		return nil
	}
	t, err := k.legacyTools(r.Table.Family)
	if err != nil {
		return err
	}
	err = beyondReach(t.Restore(ctx, r.Table.Family, []byte(r.input())))
	if refused, is := errors.AsType[*RestoreError](err); is && strings.HasPrefix(refused.Rule, "-X ") {
		err = fmt.Errorf("%w: %w", ErrInUse, err)
	}
	return err
}

// readLegacy returns the chains of a legacy table. The error is ErrBeyondReach if this process lacks the programs or
// the capabilities to use them.
func (k *Kernel) readLegacy(ctx context.Context, table TableID) (Chains, error) {
	t, err := k.legacyTools(table.Family)
	if err != nil {
		return nil, err
	}
	chains, err := t.Read(ctx, table.table())
	return chains, beyondReach(err)
}

// legacyTools returns the programs of the legacy variant.
func (k *Kernel) legacyTools(f Family) (*Tools, error) {
	installed := k.opts.installed()
	if installed[Legacy][f].restore == "" {
		return nil, fmt.Errorf("%w: %s is %w", ErrBeyondReach, f.Program()+"-legacy-restore", ErrMissing)
	}
	return &Tools{opts: k.opts, kernel: k, variant: Legacy, programs: installed[Legacy]}, nil
}

// beyondReach recognizes the messages of programs that lack a capability or cannot open the lock file.
func beyondReach(err error) error {
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), "unable to initialize table"): // which exists
		return fmt.Errorf("%w: the programs of iptables lack CAP_NET_ADMIN or CAP_NET_RAW", ErrBeyondReach)
	case errors.Is(err, fs.ErrPermission), strings.Contains(err.Error(), "you must be root"),
		strings.Contains(err.Error(), "can't open lock file"):
		return fmt.Errorf("%w: %w", ErrBeyondReach, err)
	}
	return err
}
