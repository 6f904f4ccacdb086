// Package ipset reads and changes sets of the kernel's ipset subsystem.
package ipset

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	uapi "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nl"
)

const errBusy = unix.Errno(uapi.IPSET_ERR_BUSY)

// busyTime is about how long a set may stay in use after the rules that refer to it were
// deleted: nf_tables frees rules in the background.
const busyTime = 500 * time.Millisecond

// Sets are the sets of one network namespace. A socket is open only during a call.
type Sets struct {
	netns   int
	modules string // folder with the kernel's modules
}

// New returns access to the sets of the network namespace of a file descriptor; 0: the current one.
func New(netns int) *Sets { return &Sets{netns: netns, modules: "/sys/module"} }

// Names returns the names of the sets, sorted. It does not make the kernel load the
// ipset module; without it there are no sets.
func (s *Sets) Names(ctx context.Context) ([]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !s.loaded() {
		return nil, nil
	}
	answers, err := s.list(ctx, nl.AppendUint32(nil, uapi.IPSET_ATTR_FLAGS|netlink.NetByteOrder, flagNamesOnly))
	if err != nil {
		return nil, fmt.Errorf("list ipsets: %w", err)
	}
	var names []string
	for _, m := range answers {
		name, err := setName(m)
		if err != nil {
			return nil, fmt.Errorf("list ipsets: %w", err)
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// List returns the sets of these names that exist, with their members.
func (s *Sets) List(ctx context.Context, names []string) (map[string]*Set, error) {
	all := map[string]*Set{}
	for _, name := range names {
		answers, err := s.list(ctx, nl.AppendString(nil, uapi.IPSET_ATTR_SETNAME, name))
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		set := &Set{Members: map[Member]uint32{}}
		for _, m := range answers {
			err = errors.Join(err, set.decode(m))
		}
		if err != nil {
			return nil, fmt.Errorf("list ipset %s: %w", name, err)
		}
		all[name] = set
	}
	return all, nil
}

func (s *Sets) list(ctx context.Context, attributes []byte) ([]netlink.Message, error) {
	return nl.Execute(ctx, s.request(uapi.IPSET_CMD_LIST, netlink.Dump, attributes))
}

// Destroy destroys a set. It returns nil if the set does not exist, and an error if rules refer to it.
func (s *Sets) Destroy(ctx context.Context, name string) error {
	return s.Apply(ctx, []Command{{Op: Destroy, Set: name}})
}

// Apply makes changes in their order. After an error some of the changes that follow may be made.
func (s *Sets) Apply(ctx context.Context, changes []Command) error {
	if len(changes) > 1 && s.applyMembers(ctx, changes) == nil {
		return nil
	}
	conn, err := nl.Dial(s.netns, unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // all is answered
	for _, c := range changes {
		err := s.apply(ctx, conn, c)
		for pause := time.Millisecond; c.Op == Destroy && errors.Is(err, errBusy) && pause < busyTime; pause *= 2 {
			time.Sleep(pause)
			err = s.apply(ctx, conn, c)
		}
		if err != nil {
			return fmt.Errorf("ipset %s: %w", c, reason(err))
		}
	}
	return nil
}

// errNotMembers is the error of applyMembers for other changes.
var errNotMembers = errors.New("not only changes of members")

// applyMembers makes changes of members in few messages. After an error any of them may be made.
func (s *Sets) applyMembers(ctx context.Context, changes []Command) error {
	requests := make([]nl.Request, len(changes))
	for i, c := range changes {
		if c.Op != Add && c.Op != Delete {
			return errNotMembers
		}
		requests[i] = s.request(c.command(), 0, c.forMember())
	}
	return nl.ExecuteAll(ctx, requests)
}

func (s *Sets) apply(ctx context.Context, conn *nl.Conn, c Command) error {
	var attributes []byte
	switch c.Op {
	case Create:
		revision, err := s.revision(ctx, conn, c.Definition)
		if err != nil {
			return err
		}
		attributes = c.forCreate(revision)
	case Destroy:
		attributes = nl.AppendString(nil, uapi.IPSET_ATTR_SETNAME, c.Set)
	case Add, Delete: // the kernel ignores one that is already done
		attributes = c.forMember()
	}
	_, err := conn.Execute(ctx, s.request(c.command(), netlink.Acknowledge, attributes))
	if c.Op == Destroy && errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

func (c Command) command() netlink.HeaderType {
	switch c.Op {
	case Create:
		return uapi.IPSET_CMD_CREATE
	case Destroy:
		return uapi.IPSET_CMD_DESTROY
	case Add:
		return uapi.IPSET_CMD_ADD
	default:
		return uapi.IPSET_CMD_DEL
	}
}

// revision returns the newest revision of a type that the kernel has.
func (s *Sets) revision(ctx context.Context, conn *nl.Conn, k Definition) (uint8, error) {
	attributes := nl.AppendString(nil, uapi.IPSET_ATTR_TYPENAME, string(k.Type))
	attributes = nl.AppendUint8(attributes, uapi.IPSET_ATTR_FAMILY, k.family())
	answers, err := conn.Execute(ctx, s.request(uapi.IPSET_CMD_TYPE, 0, attributes))
	if err != nil {
		return 0, err
	}
	if len(answers) == 0 {
		return 0, errors.New("the kernel does not answer which revision of the type it has")
	}
	return decodeRevision(answers[0])
}

// loaded reports whether the kernel has loaded ipset; true if that is unknown.
func (s *Sets) loaded() bool {
	if _, err := os.Stat(s.modules); err != nil {
		return true
	}
	_, err := os.Stat(s.modules + "/ip_set")
	return !errors.Is(err, fs.ErrNotExist)
}

func (s *Sets) request(command netlink.HeaderType, flags netlink.HeaderFlags, attributes []byte) nl.Request {
	return nl.Request{
		NetNS: s.netns, Protocol: unix.NETLINK_NETFILTER, Type: unix.NFNL_SUBSYS_IPSET<<8 | command, Flags: flags,
		Header:     []byte{unix.AF_INET, 0, 0, 0},
		Attributes: append(nl.AppendUint8(nil, uapi.IPSET_ATTR_PROTOCOL, uapi.IPSET_PROTOCOL), attributes...),
	}
}
