package ipvs

import (
	"context"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nl"
)

// session is an open socket to IPVS.
type session struct {
	conn   *nl.Conn
	family netlink.HeaderType
}

const familyName = "IPVS"

// session calls use with an open socket; ErrAbsent without IPVS.
func (t *Table) session(ctx context.Context, use func(*session) error) error {
	conn, err := nl.Dial(t.netns, unix.NETLINK_GENERIC)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // all is answered
	s := &session{conn: conn}
	if err := s.find(ctx); err != nil {
		return err
	}
	return use(s)
}

// find finds the number of IPVS among the families of generic netlink. It lists all,
// because a request by name may make the kernel load the module.
func (s *session) find(ctx context.Context) error {
	answers, err := s.conn.Execute(ctx, nl.Request{
		Type: unix.GENL_ID_CTRL, Flags: netlink.Dump, Header: []byte{unix.CTRL_CMD_GETFAMILY, version, 0, 0},
	})
	for _, m := range answers {
		name, id, decodeErr := decodeFamily(m)
		if err = errors.Join(err, decodeErr); name == familyName && err == nil {
			s.family = id
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("list families of generic netlink: %w", err)
	}
	return ErrAbsent
}

func (s *session) execute(
	ctx context.Context, command byte, flags netlink.HeaderFlags, attributes []byte,
) ([]netlink.Message, error) {
	return s.conn.Execute(ctx, s.request(command, flags, attributes))
}

func (s *session) request(command byte, flags netlink.HeaderFlags, attributes []byte) nl.Request {
	return nl.Request{Type: s.family, Flags: flags, Header: []byte{command, version, 0, 0}, Attributes: attributes}
}

func (s *session) destinations(ctx context.Context, of Server) ([]Destination, error) {
	answers, err := s.execute(ctx, cmdGetDest, netlink.Dump, of.attributes())
	if missing(err) {
		return nil, nil
	}
	all := make([]Destination, 0, len(answers))
	for _, m := range answers {
		one, decodeErr := decodeDestination(m, of)
		err = errors.Join(err, decodeErr)
		all = append(all, one)
	}
	if err != nil {
		return nil, fmt.Errorf("list destinations of virtual server %s: %w", of, err)
	}
	return all, nil
}

// apply makes one change. What exists is changed, and what does not exist needs no deletion.
func (s *session) apply(ctx context.Context, c Command) error {
	commands := c.commands()
	_, err := s.execute(ctx, commands[0], netlink.Acknowledge, c.attributes())
	switch {
	case len(commands) == 1 && missing(err):
		return nil
	case len(commands) == 2 && (errors.Is(err, unix.EEXIST) || c.Exists && missing(err)):
		_, err = s.execute(ctx, commands[1], netlink.Acknowledge, c.attributes())
	}
	return c.explain(err)
}

// commands returns the command for a change, and the one to try if what it names exists although c.Exists is false,
// or the reverse.
func (c Command) commands() []byte {
	add, set := byte(cmdNewService), byte(cmdSetService)
	switch c.Op {
	case Delete:
		return []byte{cmdDelService}
	case DeleteDest:
		return []byte{cmdDelDest}
	case SetDest:
		add, set = cmdNewDest, cmdSetDest
	case Set:
	}
	if c.Exists {
		return []byte{set, add}
	}
	return []byte{add, set}
}

// explain adds the reason to an error of the kernel.
func (c Command) explain(err error) error {
	switch {
	case c.Op == Set && errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%w: %q", ErrScheduler, c.Settings.Scheduler)
	case c.Op == SetDest && errors.Is(err, unix.ESRCH):
		return fmt.Errorf("the virtual server does not exist: %w", err)
	}
	return err
}

// ErrScheduler is the error of a scheduler that the kernel does not have.
var ErrScheduler = errors.New("this kernel does not have the scheduler")

func missing(err error) bool { return errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) }
