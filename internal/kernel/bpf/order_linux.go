package bpf

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/cilium/ebpf"
)

// answerTime is how long answers to datagrams are expected that sockets have sent to backends.
const answerTime = time.Second

// choosing reports whether a program puts a backend in place of a Service. The others do what this needs from then on: answers seem to
// come from the Service, and sockets are forgotten when they are closed.
func choosing(program string) bool {
	return strings.HasPrefix(program, "sluice_connect") || strings.HasPrefix(program, "sluice_sendmsg")
}

// detach removes links. Those of programs that choose are first; if a socket may wait for an answer then, the others are after answerTime.
func (c *Conn) detach(ctx context.Context, links []string) error {
	var others []string
	for _, name := range links {
		if !choosing(name) {
			others = append(others, name)
		} else if err := os.Remove(c.linkPath(name)); err != nil {
			return fmt.Errorf("detach a program: %w", err)
		}
	}
	if len(others) > 0 && c.answersDue() {
		select {
		case <-ctx.Done(): // what is left is removed by the next attempt
			return ctx.Err()
		case <-time.After(answerTime):
		}
	}
	for _, name := range others {
		if err := os.Remove(c.linkPath(name)); err != nil {
			return fmt.Errorf("detach a program: %w", err)
		}
	}
	return nil
}

// answersDue reports whether a socket may wait for an answer. A map that cannot be read is one of another version: nobody reads it.
func (c *Conn) answersDue() bool {
	m, err := ebpf.LoadPinnedMap(c.mapPath(sockMapOriginals), nil)
	if err != nil {
		return false
	}
	defer func() { _ = m.Close() }() // it was only read from
	first, err := m.NextKeyBytes(nil)
	return first != nil || err != nil && !errors.Is(err, ebpf.ErrKeyNotExist)
}
