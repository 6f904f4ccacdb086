package xtables

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The socket options of ip_tables and of ip6_tables have the same numbers, on
// different levels (linux/netfilter_ipv4/ip_tables.h).
const (
	getInfo     = 64
	getEntries  = 65
	setReplace  = 64
	setCounters = 65
)

// protocol is what differs between the families.
type protocol struct {
	family Family
	names  string // the file that lists the tables there are
	domain int
	level  int
}

func protocols() []protocol {
	return []protocol{
		{IPv4, "/proc/thread-self/net/ip_tables_names", unix.AF_INET, unix.SOL_IP},
		{IPv6, "/proc/thread-self/net/ip6_tables_names", unix.AF_INET6, unix.SOL_IPV6},
	}
}

// tables lists the tables there are. To ask for one that is not there would
// make it, and with it hooks that every packet goes through.
func (p protocol) tables() ([]string, error) {
	b, err := os.ReadFile(p.names)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return strings.Fields(string(b)), err
}

// legacySocket asks about the tables of one family.
type legacySocket struct {
	protocol
	fd int
}

// open needs no privilege; what is asked through the socket does.
func (p protocol) open() (legacySocket, error) {
	fd, err := unix.Socket(p.domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return legacySocket{}, fmt.Errorf("open socket: %w", err)
	}
	return legacySocket{protocol: p, fd: fd}, nil
}

func (s legacySocket) close() { _ = unix.Close(s.fd) } // nothing is lost with it

func legacyTables(ctx context.Context) ([]Table, error) {
	var tables []Table
	for _, p := range protocols() {
		names, err := p.tables()
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			id := TableID{Variant: Legacy, Family: p.family, Name: name}
			t, err := p.read(ctx, id)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", id, err)
			}
			tables = append(tables, t)
		}
	}
	return tables, nil
}

func (p protocol) read(ctx context.Context, id TableID) (Table, error) {
	s, err := p.open()
	if err != nil {
		return Table{}, err
	}
	defer s.close()
	b, err := s.blob(ctx, id.Name)
	if err != nil {
		return Table{}, err
	}
	return b.table(id), nil
}

// blob reads a table.
func (s legacySocket) blob(ctx context.Context, name string) (*blob, error) {
	img, err := s.image(ctx, name)
	if err != nil {
		return nil, err
	}
	b, err := parse(s.family, img)
	if err != nil {
		return nil, fmt.Errorf("understand what the kernel holds: %w", err)
	}
	return b, nil
}

// image reads a table. The kernel asks to be told how large it is, and says
// EAGAIN if that changed; a program that writes a lot is given ever more time to
// come to an end.
func (s legacySocket) image(ctx context.Context, name string) (image, error) {
	for i := range attempts {
		if err := ctx.Err(); err != nil {
			return image{}, err
		}
		img, size, err := s.info(name)
		if err != nil {
			return image{}, err
		}
		listing := encodeListing(name, size)
		err = s.get(getEntries, listing)
		if errors.Is(err, unix.EAGAIN) {
			backOff(ctx, i)
			continue
		}
		if err != nil {
			return image{}, fmt.Errorf("read entries: %w", err)
		}
		img.data = listing[listingHead:]
		return img, nil
	}
	return image{}, fmt.Errorf("read %d times, and it changed each time", attempts)
}

// info reads all of a table but its entries, and their size.
func (s legacySocket) info(name string) (image, uint32, error) {
	var info [infoLen]byte
	copy(info[:nameLen-1], name)
	if err := s.get(getInfo, info[:]); err != nil {
		return image{}, 0, fmt.Errorf("read size: %w", err)
	}
	img, size := decodeInfo(info)
	return img, size, nil
}

// removeFromLegacy changes one table.
func removeFromLegacy(ctx context.Context, r Removal) error {
	for _, p := range protocols() {
		if p.family != r.Table.Family {
			continue
		}
		names, err := p.tables()
		if err != nil {
			return err
		}
		for _, name := range names {
			if name != r.Table.Name {
				continue
			}
			if err := p.remove(ctx, r); err != nil {
				return fmt.Errorf("%s: %w", r.Table, err)
			}
		}
	}
	return nil
}

func (p protocol) remove(ctx context.Context, r Removal) error {
	s, err := p.open()
	if err != nil {
		return err
	}
	defer s.close()
	for i := range attempts {
		done, err := s.try(ctx, r)
		if done || err != nil {
			return err
		}
		backOff(ctx, i)
	}
	return fmt.Errorf("tried %d times, and somebody else changed it each time", attempts)
}

// try removes, unless the table changes meanwhile. The kernel looks only at the
// number of entries, so we look again, right before.
func (s legacySocket) try(ctx context.Context, r Removal) (done bool, err error) {
	b, err := s.blob(ctx, r.Table.Name)
	if err != nil {
		return false, err
	}
	c, err := r.cut(b.table(r.Table))
	if err != nil || c.empty() {
		return true, err
	}
	img, kept := b.without(c)
	now, err := s.image(ctx, r.Table.Name)
	if err != nil || !b.equal(now) {
		return false, err
	}
	counters, err := s.replace(r.Table.Name, img, b.number)
	if errors.Is(err, unix.EAGAIN) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("write %d of %d entries: %w", len(kept), b.number, err)
	}
	if err := s.set(setCounters, encodeCounters(r.Table.Name, kept, counters)); err != nil {
		return true, fmt.Errorf("the rules are removed, but give the others their counters back: %w", err)
	}
	return true, nil
}

// replace writes a table and returns the counters of the old one's entries, of
// which the caller knows the number.
func (s legacySocket) replace(table string, img image, old uint32) ([]byte, error) {
	counters := make([]byte, int(old)*counterLen)
	var pin runtime.Pinner
	pin.Pin(&counters[0])
	defer pin.Unpin()
	address := uint64(uintptr(unsafe.Pointer(&counters[0])))
	return counters, s.set(setReplace, encodeReplace(table, img, old, address))
}

// get asks for an option: the request is in b, and the answer replaces it.
func (s legacySocket) get(option int, b []byte) error {
	size := uint32(len(b))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s.fd), uintptr(s.level), uintptr(option),
		uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func (s legacySocket) set(option int, b []byte) error {
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(s.fd), uintptr(s.level), uintptr(option),
		uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
