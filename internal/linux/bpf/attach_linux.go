package bpf

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
)

// versionOf returns a hash of the compiled programs and of the options that they are loaded with.
func (c *Conn) versionOf() string {
	h := sha256.New()
	h.Write(sockObject)
	h.Write(native64(c.cookie))
	fmt.Fprint(h, c.opt.ConnectedUDP, c.opt.Durations)
	h.Write(native32(uint32(c.opt.Exempting)))
	return hex.EncodeToString(h.Sum(nil)[:6])
}

// cookieOf returns the cookie of a network namespace, by which programs identify it.
func cookieOf(ns int) (cookie uint64, err error) {
	err = netns.Do(ns, func() error {
		cookie, err = netns.Cookie()
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("identify the network namespace: %w", err)
	}
	return cookie, nil
}

// sockops is the program that measures how long connections take.
const sockops = "sluice_sockops"

// points returns the attach type of each program.
func (c *Conn) points() map[string]ebpf.AttachType {
	all := map[string]ebpf.AttachType{
		"sluice_connect4": ebpf.AttachCGroupInet4Connect, "sluice_connect6": ebpf.AttachCGroupInet6Connect,
		"sluice_sendmsg4": ebpf.AttachCGroupUDP4Sendmsg, "sluice_sendmsg6": ebpf.AttachCGroupUDP6Sendmsg,
		"sluice_recvmsg4": ebpf.AttachCGroupUDP4Recvmsg, "sluice_recvmsg6": ebpf.AttachCGroupUDP6Recvmsg,
		"sluice_getpeer4": ebpf.AttachCgroupInet4GetPeername, "sluice_getpeer6": ebpf.AttachCgroupInet6GetPeername,
		"sluice_release": ebpf.AttachCgroupInetSockRelease,
	}
	if c.opt.Durations {
		all[sockops] = ebpf.AttachCGroupSockOps
	}
	return all
}

// attachOrder returns the programs in the order in which they are attached: those that choose backends are last.
func (c *Conn) attachOrder() []string {
	choosing, others := split(slices.Sorted(maps.Keys(c.points())))
	return append(others, choosing...)
}

// attach loads the programs with the current maps, and attaches them. It replaces an attached program atomically: a
// socket always runs the old or the new one.
func (c *Conn) attach() error {
	if err := os.MkdirAll(filepath.Join(c.opt.Dir, linksFolder), 0o700); err != nil {
		return fmt.Errorf("make the folder for links: %w", err)
	}
	programs, err := c.load()
	if err != nil {
		return err
	}
	defer programs.Close()
	for _, program := range c.attachOrder() {
		p := programs.Programs[program]
		err := c.replace(program, link.CgroupOptions{Path: c.opt.Cgroup, Attach: c.points()[program], Program: p})
		if err == nil {
			err = pinOver(c, p, c.programPath(program))
		}
		if err != nil {
			return fmt.Errorf("attach program %s to %s: %w", program, c.opt.Cgroup, err)
		}
	}
	return errors.Join(c.pinMaps(), c.tidy(), c.detachOthers())
}

// load loads the programs.
func (c *Conn) load() (*ebpf.Collection, error) {
	spec := c.spec.Copy()
	set := spec.Variables
	err := errors.Join(set["node_netns"].Set(c.cookie), set["connected_udp"].Set(c.opt.ConnectedUDP),
		set["exempting"].Set(uint32(c.opt.Exempting)), set["measures"].Set(c.opt.Durations))
	if err != nil {
		return nil, err
	}
	if !c.opt.Durations {
		delete(spec.Programs, sockops)
	}
	for name, m := range c.maps {
		spec.Maps[name].MaxEntries = m.MaxEntries()
	}
	programs, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: c.maps})
	if err != nil {
		return nil, fmt.Errorf("load the programs: %w", err)
	}
	return programs, nil
}

// replace updates the link of a program, or attaches the program and pins the link.
func (c *Conn) replace(program string, o link.CgroupOptions) error {
	if err := c.injectFault(Attach); err != nil {
		return err
	}
	l, err := c.linkOf(program)
	if err != nil {
		return err
	}
	if l != nil {
		return errors.Join(l.Update(o.Program), l.Close())
	}
	path := c.linkPath(program)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // a link to another cgroup
		return err
	}
	if l, err = link.AttachCgroup(o); err != nil {
		return err
	}
	return errors.Join(l.Pin(path), l.Close())
}

// tidy removes the pins of other versions: links, programs, and maps that this version does not have, or not with these
// fields.
func (c *Conn) tidy() error {
	_, err := c.removePins(func(dir, name string) bool {
		return dir == linksFolder && c.isCurrent(name) || dir == c.mapsDir && c.maps[name] != nil
	})
	return err
}

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
