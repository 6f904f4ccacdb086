package iptables

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
)

// What the kernel returns about a legacy table without the programs of iptables
// (linux/netfilter_ipv4/ip_tables.h). It takes CAP_NET_ADMIN. Numbers are in the machine's byte order.
const (
	getInfo    = 64 // IPT_SO_GET_INFO, IP6T_SO_GET_INFO
	getEntries = 65 // IPT_SO_GET_ENTRIES, IP6T_SO_GET_ENTRIES

	nameLen     = 32 // bytes of the name of a table
	infoLen     = 84 // of struct ipt_getinfo
	listingHead = 40 // of struct ipt_get_entries
	hookCount   = 5
)

// protocol is what differs between the families.
type protocol struct {
	names         string // the file that lists the existing tables
	domain, level int
}

func protocolOf(f Family) protocol {
	if f == IPv6 {
		return protocol{"/proc/thread-self/net/ip6_tables_names", unix.AF_INET6, unix.SOL_IPV6}
	}
	return protocol{"/proc/thread-self/net/ip_tables_names", unix.AF_INET, unix.SOL_IP}
}

// tables lists the existing tables. A request for another one would create it, and with
// it hooks that every packet passes.
func (p protocol) tables() ([]string, error) {
	b, err := os.ReadFile(p.names)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return strings.Fields(string(b)), err
}

// get calls getsockopt: the request is in b, and the answer replaces it.
func (p protocol) get(option int, b []byte) error {
	fd, err := unix.Socket(p.domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }() // nothing is lost with it
	size := uint32(len(b))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(p.level), uintptr(option),
		uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// Stamp is what the kernel returns about a legacy table without its rules: its size, number of entries, and the offsets
// of its built-in chains. It differs after rules were added or removed, but not after a rule was replaced with one of
// the same size. The zero value is that of a table that does not exist.
type Stamp [infoLen - nameLen]byte

func (s Stamp) word(i int) int { return int(binary.NativeEndian.Uint32(s[4*i:])) }

// entries and size are those of the whole table.
func (s Stamp) entries() int { return s.word(1 + 2*hookCount) }
func (s Stamp) size() int    { return s.word(2 + 2*hookCount) }

// rules returns the number of rules in a table with so many chains that were added. Each of these has two
// more entries, each built-in chain one, and the table one.
func (s Stamp) rules(chains int) int {
	n := s.entries() - 2*chains - 1
	for hook := range hookCount {
		if s.word(0)&(1<<hook) != 0 {
			n--
		}
	}
	return n
}

func (p protocol) stamp(table string) (Stamp, error) {
	var info [infoLen]byte
	copy(info[:nameLen-1], table)
	if err := p.get(getInfo, info[:]); err != nil {
		return Stamp{}, fmt.Errorf("read size: %w", err)
	}
	return Stamp(info[nameLen:]), nil
}

// Stamps returns the stamps of the legacy tables that exist. The cost does not depend on what they hold.
func (k *Kernel) Stamps(ctx context.Context) (map[TableID]Stamp, error) {
	stamps := map[TableID]Stamp{}
	err := k.legacy(ctx, func(id TableID, p protocol) error {
		s, err := p.stamp(id.Name)
		if errors.Is(err, unix.ENOENT) { // gone just now
			return nil
		}
		stamps[id] = s
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read sizes of legacy tables: %w%s", err, remedy(err))
	}
	return stamps, nil
}

// legacyTable is what is known about a legacy table without the programs.
type legacyTable struct {
	TableID
	chains []string // that were added
	rules  int
}

// legacyTables returns the legacy tables that exist.
func (k *Kernel) legacyTables(ctx context.Context) (all []legacyTable, err error) {
	err = k.legacy(ctx, func(id TableID, p protocol) error {
		chains, stamp, err := p.chains(id.Name)
		// EAGAIN: the table changed meanwhile.
		for pause := time.Millisecond; errors.Is(err, unix.EAGAIN) && pause < time.Second; pause *= 2 {
			time.Sleep(pause)
			chains, stamp, err = p.chains(id.Name)
		}
		all = append(all, legacyTable{id, chains, stamp.rules(len(chains))})
		return err
	})
	return all, err
}

// chains returns the names of the chains that were added to a table, which must exist, and its stamp.
// The error is EAGAIN if the size changed between the two.
func (p protocol) chains(table string) ([]string, Stamp, error) {
	stamp, err := p.stamp(table)
	if err != nil {
		return nil, stamp, err
	}
	listing := make([]byte, listingHead+stamp.size())
	copy(listing[:nameLen-1], table)
	binary.NativeEndian.PutUint32(listing[nameLen:], uint32(stamp.size()))
	if err := p.get(getEntries, listing); err != nil {
		return nil, stamp, fmt.Errorf("read entries: %w", err)
	}
	return chainNames(listing[listingHead:]), stamp, nil
}

// chainNames finds the names of chains in the entries of a table. Before the name of a chain is the head of a target
// called ERROR: its size, 29 bytes with its name, and its revision. The last one ends the table.
func chainNames(entries []byte) []string {
	const nameSize, targetSize = 30, 64
	head := append(binary.NativeEndian.AppendUint16(nil, targetSize), "ERROR"...)
	head = append(head, make([]byte, 29+1-len("ERROR"))...)
	var names []string
	for {
		_, rest, found := bytes.Cut(entries, head)
		if !found || len(rest) < nameSize {
			return names[:max(0, len(names)-1)]
		}
		name, _, _ := bytes.Cut(rest[:nameSize], []byte{0})
		names = append(names, string(name))
		entries = rest
	}
}

// legacy calls fn for each legacy table that exists, in the namespace. It creates none.
func (k *Kernel) legacy(ctx context.Context, fn func(TableID, protocol) error) error {
	return netns.Do(k.opts.NetNS, func() error {
		for _, f := range []Family{IPv4, IPv6} {
			p := protocolOf(f)
			names, err := p.tables()
			if err != nil {
				return err
			}
			for _, name := range names {
				if err := ctx.Err(); err != nil {
					return err
				}
				id := TableID{Variant: Legacy, Family: f, Name: name}
				if err := fn(id, p); err != nil {
					return fmt.Errorf("%s: %w", id, err)
				}
			}
		}
		return nil
	})
}
