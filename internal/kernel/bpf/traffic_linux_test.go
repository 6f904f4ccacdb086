package bpf

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/lab"
)

// keep calls functions in a loop until the test calls end, and then 20 times more. It fails the test if any call fails. The first call of
// each function ends before keep returns.
func (n *upgraded) keep(calls ...func() error) (end func()) {
	for _, call := range calls {
		inside := lab.Inside(n.t, n.opt.Cgroup, n.opt.NetNS)
		if err := inside(call); err != nil {
			n.t.Fatal(err)
		}
		n.traffic.Go(func() {
			for i, more := 0, 20; more > 0; i++ {
				if n.stopped() {
					more--
				}
				if err := inside(call); err != nil {
					n.t.Errorf("call %d: %v", i, err)
					return
				}
			}
		})
	}
	return func() {
		n.t.Helper()
		close(n.stop)
		n.traffic.Wait()
	}
}

func (n *upgraded) stopped() bool {
	select {
	case <-n.stop:
		return true
	default:
		return false
	}
}

func callTCP() error {
	_, peer, err := ask(vip)
	if err == nil && peer != vip {
		err = fmt.Errorf("the peer is %s, want %s", peer, vip)
	}
	return err
}

func callConnectedUDP() error {
	return withSocket(unix.AF_INET, func(s *socket) error {
		if err := s.connectAndAsk(dns4); err != nil {
			return fmt.Errorf("a connected socket: %w", err)
		}
		if _, err := s.want(dns4, dns4); err != nil {
			return fmt.Errorf("a connected socket that sends to the Service: %w", err)
		}
		return nil
	})
}

// callUDP sends from a new socket. While programs of two versions run, a later datagram may go to another backend.
func callUDP() error {
	return withSocket(unix.AF_INET, func(s *socket) error {
		for range 3 {
			_, from, err := s.ask(dns4)
			if err == nil {
				err = differs("the source of a reply", from, dns4)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// callOneSocket sends from one socket all the time: its backend stays.
func callOneSocket(t *testing.T) func() error {
	s, by := (*socket)(nil), ""
	return func() (err error) {
		if s == nil {
			if s, err = openSocket(unix.AF_INET); err != nil {
				return err
			}
			t.Cleanup(s.close)
		}
		answered, from, err := s.ask(dns4)
		if err == nil && (from != dns4 || by != "" && by != answered) {
			err = fmt.Errorf("%s answers as %s after %s", answered, from, by)
		}
		by = answered
		return err
	}
}
