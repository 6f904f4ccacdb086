package conntrack

import (
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nl"
)

const nlmsgHeaderLen, attrHeaderLen = 16, 4 // of linux/netlink.h

// socket sends requests about conntrack.
type socket struct {
	*nl.Socket
	last uint32 // sequence number of the last request
}

// dial opens a socket in the network namespace of a file descriptor, or in the current one if it is 0.
func dial(netns int) (*socket, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: netns})
	if err != nil {
		return nil, fmt.Errorf("open conntrack netlink: %w", err)
	}
	s, err := nl.NewSocket(conn)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return &socket{Socket: s}, nil
}

// query sends a request, and calls fn with each message of the answer until fn returns an error. A message is valid
// only during the call.
func (s *socket) query(request netlink.Message, fn func(netlink.Message) error) error {
	s.last++
	request.Header.Length = uint32(nlmsgHeaderLen + len(request.Data)) //nolint:gosec // a few attributes
	request.Header.Flags |= netlink.Request
	request.Header.Sequence = s.last
	b, err := request.MarshalBinary()
	if err == nil {
		err = s.Write(b)
	}
	if err != nil {
		return err
	}
	for {
		part, err := s.Wait()
		if err != nil {
			return err
		}
		for m := range nl.Messages(part) {
			if m.Header.Sequence != s.last {
				continue // the rest of an earlier answer
			}
			if ends, err := nl.Ends(m); ends {
				return err
			}
			if err := fn(m); err != nil {
				return err
			}
			if request.Header.Flags&netlink.Dump == 0 {
				return nil
			}
		}
	}
}
