package bpf

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// answerTime is how long detach waits for the answers to datagrams that sockets have sent to backends.
const answerTime = time.Second

// The prefixes of the names of programs that choose backends.
const (
	connectPrefix = "sluice_connect"
	sendmsgPrefix = "sluice_sendmsg"
)

// split divides programs into those that replace the address of a Service by the address of a backend, and others:
// these translate answers back, and delete the entries of closed sockets.
func split(programs []string) (choosing, others []string) {
	for _, name := range programs {
		if strings.HasPrefix(name, connectPrefix) || strings.HasPrefix(name, sendmsgPrefix) {
			choosing = append(choosing, name)
		} else {
			others = append(others, name)
		}
	}
	return choosing, others
}

// detach removes links, first the links of programs that choose backends. If a socket may still wait for an answer,
// it removes the others after answerTime.
func (c *Conn) detach(ctx context.Context, links []string) error {
	choosing, others := split(links)
	for _, name := range choosing {
		if err := c.unpin(name); err != nil {
			return err
		}
	}
	if len(others) > 0 && c.answersDue() {
		select {
		case <-ctx.Done(): // the next attempt removes the other links
			return ctx.Err()
		case <-time.After(answerTime):
		}
	}
	for _, name := range others {
		if err := c.unpin(name); err != nil {
			return err
		}
	}
	return nil
}

// unpin removes the pin of a link, after it has detached the program: the kernel does that some milliseconds after a
// removal.
func (c *Conn) unpin(name string) error {
	path := c.linkPath(name)
	if l, err := link.LoadPinnedLink(path, nil); err == nil { // pins of programs are no links
		_ = errors.Join(l.Detach(), l.Close()) // the removal detaches it in any case
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("detach a program: %w", err)
	}
	return nil
}

// answersDue reports whether a socket may wait for an answer, by the maps of any version. It ignores a map that it
// cannot open.
func (c *Conn) answersDue() bool {
	paths, _ := filepath.Glob(filepath.Join(c.opt.Dir, mapsPrefix+"*", sockMapUDPReplies)) // the pattern is a valid one
	return slices.ContainsFunc(paths, hasEntries)
}

func hasEntries(path string) bool {
	m, err := ebpf.LoadPinnedMap(path, nil)
	if err != nil {
		return false
	}
	defer func() { _ = m.Close() }() // it was only read from
	first, err := m.NextKeyBytes(nil)
	return first != nil || err != nil && !errors.Is(err, ebpf.ErrKeyNotExist)
}
