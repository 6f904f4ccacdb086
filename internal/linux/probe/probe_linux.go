package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/linux/nl"
	"github.com/sluice-proxy/sluice/internal/linux/sysctl"
)

// tableName is the name of the temporary table. No other program sees it: the
// transaction that creates it also deletes it.
const tableName = "sluice-probe"

// Options for NFTables and Iptables.
type Options struct {
	NetNS int // file descriptor of a network namespace; 0: the current one
}

// Support lists the usable families.
type Support struct {
	IPv4, IPv6 bool
	NoIPv6     string    // why IPv6 is not usable; empty: it is
	Missing    []Missing // optional extensions of iptables that this host lacks
}

// Missing is an optional extension that a host lacks.
type Missing struct {
	Name   string // such as "match recent"
	Family string // IPv4 or IPv6
	Remedy string
}

// NFTables checks the features of nf_tables. The error has a sentence with the remedy for each problem, one per line,
// and is ErrPrivilege or ErrFeature. A host without IPv6 is no error.
func NFTables(ctx context.Context, opts Options) (Support, error) {
	if err := reach(ctx, opts); err != nil {
		return Support{}, err
	}
	conn, err := nft.Open(nft.Options{NetNS: opts.NetNS})
	if err != nil {
		return Support{}, err
	}
	defer func() { _ = conn.Close() }() // all is answered
	missing := func(f nft.Family) error {
		return missingFeatures(f, func(all ...feature) error { return try(ctx, conn, f, all) })
	}
	if err := missing(nft.IP4); err != nil {
		return Support{}, err
	}
	return Support{IPv4: true}.withIPv6(opts, "", func() ([]Missing, error) { return nil, missing(nft.IP6) })
}

// withIPv6 adds IPv6, or the reason why it is not usable: this host has no IPv6, lack
// is not empty, or the check returns ErrFeature.
func (s Support) withIPv6(opts Options, lack string, check func() ([]Missing, error)) (Support, error) {
	reason, err := noIPv6(opts)
	if err != nil {
		return Support{}, err
	}
	if reason == "" {
		reason = lack
	}
	var missing []Missing
	if reason == "" {
		missing, err = check()
		if err != nil && !errors.Is(err, ErrFeature) {
			return Support{}, err
		}
		if err != nil {
			reason, missing = err.Error(), nil
		}
	}
	s.IPv6, s.NoIPv6, s.Missing = reason == "", reason, append(s.Missing, missing...)
	return s, nil
}

// reach requests the generation number of nf_tables, the simplest request.
func reach(ctx context.Context, opts Options) error {
	_, err := nl.Execute(ctx, nl.Request{
		NetNS: opts.NetNS, Protocol: unix.NETLINK_NETFILTER, Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN,
	})
	return explainReach(err)
}

func explainReach(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%w: programming nf_tables needs the capability CAP_NET_ADMIN: "+
			"run as root, or grant it (in a pod: securityContext.capabilities.add: [NET_ADMIN])", ErrPrivilege)
	case errors.Is(err, unix.EPROTONOSUPPORT):
		return fmt.Errorf("%w: the kernel has no netfilter netlink: load the module nfnetlink, "+
			"or use a kernel with CONFIG_NETFILTER_NETLINK", ErrFeature)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%w: the kernel has no nf_tables: load it with: modprobe nf_tables, "+
			"or use a kernel with CONFIG_NF_TABLES", ErrFeature)
	}
	return fmt.Errorf("ask nf_tables for its state: %w", err)
}

// check tries requirements all at once, and one by one only if that fails. explain returns the error of a requirement
// that fails alone: ErrFeature if the kernel lacks it, nil if it is optional. Any other error ends the check.
func check[T any](what string, all []T, try func(...T) error, explain func(T, error) error) error {
	whole := try(all...)
	if whole == nil {
		return nil
	}
	failed := false
	var missing []error
	for _, one := range all {
		err := try(one)
		if err == nil {
			continue
		}
		failed, err = true, explain(one, err)
		if err != nil && !errors.Is(err, ErrFeature) {
			return err
		}
		missing = append(missing, err)
	}
	if !failed {
		return fmt.Errorf("try %s: each feature works alone, but not all together: %w", what, whole)
	}
	return errors.Join(missing...)
}

// missingFeatures returns an error for each feature that the kernel lacks in a family.
func missingFeatures(f nft.Family, try func(...feature) error) error {
	return check("nf_tables in "+familyName(f), features(), try, func(one feature, err error) error {
		switch {
		case errors.Is(err, os.ErrPermission):
			return explainReach(err)
		case !unsupported(err):
			return fmt.Errorf("try nf_tables %s in %s: %w", one.name, familyName(f), err)
		}
		return fmt.Errorf("%w: nf_tables %s in %s: %s", ErrFeature, one.name, familyName(f), one.remedy(f))
	})
}

// unsupported reports whether an error means that the kernel lacks a feature.
func unsupported(err error) bool {
	return slices.ContainsFunc([]error{
		unix.EOPNOTSUPP, unix.ENOENT, unix.EINVAL, unix.EAFNOSUPPORT, unix.EPROTONOSUPPORT, unix.ENOSYS, unix.ERANGE,
	}, func(no error) bool { return errors.Is(err, no) })
}

// try makes the kernel accept or refuse a temporary table with the features.
func try(ctx context.Context, conn *nft.Conn, f nft.Family, features []feature) error {
	t := nft.Table{Family: f, Name: tableName}
	tx := &nft.Tx{}
	for _, one := range features {
		one.add(tx, t)
	}
	return conn.Try(ctx, t, tx)
}

// noIPv6 returns the reason why this host has no IPv6; "" if it has.
func noIPv6(opts Options) (string, error) {
	const key = "net.ipv6.conf.all.disable_ipv6"
	off, err := sysctl.New(sysctl.Options{NetNS: opts.NetNS}).Get(key)
	switch {
	case errors.Is(err, sysctl.ErrNotFound):
		return "the kernel has no IPv6", nil
	case err != nil:
		return "", fmt.Errorf("find out whether there is IPv6: %w", err)
	case strings.TrimSpace(off) != "0":
		return fmt.Sprintf("%s is %s; to use it: sysctl -w %s=0", key, off, key), nil
	}
	return "", nil
}
