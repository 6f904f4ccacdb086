package bpf

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/netns"
)

// version says which programs there are, for which network namespace, and with which options.
func version(cookie uint64, o Options) string {
	h := sha256.New()
	h.Write(_SockBytes)
	h.Write(native64(cookie))
	h.Write(native32(uint32(o.ConnectedUDP)))
	h.Write([]byte(o.Node))
	h.Write(native32(o.exempting()))
	return hex.EncodeToString(h.Sum(nil)[:6])
}

func (o Options) exempting() uint32 {
	if o.Exempting {
		return 1
	}
	return 0
}

// cookieOf returns the number by which programs know a network namespace.
func cookieOf(ns int) (cookie uint64, err error) {
	err = netns.Do(ns, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }() // nothing was written to it
		cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("identify the network namespace: %w", err)
	}
	return cookie, nil
}

// points are where the programs are attached.
func points() map[string]ebpf.AttachType {
	return map[string]ebpf.AttachType{
		sockProgSluiceConnect4: ebpf.AttachCGroupInet4Connect, sockProgSluiceConnect6: ebpf.AttachCGroupInet6Connect,
		sockProgSluiceSendmsg4: ebpf.AttachCGroupUDP4Sendmsg, sockProgSluiceSendmsg6: ebpf.AttachCGroupUDP6Sendmsg,
		sockProgSluiceRecvmsg4: ebpf.AttachCGroupUDP4Recvmsg, sockProgSluiceRecvmsg6: ebpf.AttachCGroupUDP6Recvmsg,
		sockProgSluiceGetpeer4: ebpf.AttachCgroupInet4GetPeername, sockProgSluiceGetpeer6: ebpf.AttachCgroupInet6GetPeername,
		sockProgSluiceLearn: ebpf.AttachCGroupSockOps, sockProgSluiceRelease: ebpf.AttachCgroupInetSockRelease,
	}
}

// The name of a pinned link is that of its program, and the version.
func (c *Conn) linkName(program string) string { return program + "-" + c.version }

// attached returns the version of the programs that are attached to the cgroup; "" if there are none, and "incomplete"
// if some are not there.
func (c *Conn) attached() (string, error) {
	names, err := c.names("links")
	if err != nil || len(names) == 0 {
		return "", err
	}
	for program := range points() {
		l, err := c.linkOf(names, program)
		if err != nil {
			return "", err
		}
		if l == nil {
			return "incomplete", nil
		}
		_ = l.Close() // it stays pinned
		if !exists(c.linkPath(c.linkName(program))) {
			return "other", nil
		}
	}
	return c.version, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// linkOf opens the pinned link of a program, whatever its version; nil: there is none to this cgroup.
func (c *Conn) linkOf(names []string, program string) (link.Link, error) {
	for _, name := range names {
		if !strings.HasPrefix(name, program+"-") {
			continue
		}
		l, err := link.LoadPinnedLink(c.linkPath(name), nil)
		if err != nil {
			return nil, fmt.Errorf("open the link of program %s: %w", program, err)
		}
		here, err := c.here(l)
		if here || err != nil {
			return l, err
		}
		if err := l.Close(); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// here reports whether a link is to the cgroup.
func (c *Conn) here(l link.Link) (bool, error) {
	info, err := l.Info()
	if err != nil {
		return false, fmt.Errorf("ask for the cgroup of a program: %w", err)
	}
	var stat unix.Stat_t
	if err := unix.Stat(c.opt.Cgroup, &stat); err != nil {
		return false, fmt.Errorf("find the cgroup: %w", &fs.PathError{Op: "stat", Path: c.opt.Cgroup, Err: err})
	}
	group := info.Cgroup()
	return group != nil && group.CgroupId == stat.Ino, nil
}

// attach loads the programs with the maps as they are, and attaches them. One that is attached already is replaced at
// once: at every moment a socket finds either.
func (c *Conn) attach() error {
	if err := os.MkdirAll(c.linksDir(), 0o700); err != nil {
		return fmt.Errorf("make the folder for links: %w", err)
	}
	programs, err := c.load()
	if err != nil {
		return err
	}
	defer programs.Close()
	names, err := c.names("links")
	if err != nil {
		return err
	}
	for _, program := range inOrder() {
		at := points()[program]
		if err := c.replace(names, program, link.CgroupOptions{Path: c.opt.Cgroup, Attach: at, Program: programs.Programs[program]}); err != nil {
			return fmt.Errorf("attach program %s to %s: %w", program, c.opt.Cgroup, err)
		}
	}
	return errors.Join(c.pinAgain(), c.tidy())
}

// pinAgain pins maps whose pins another program has removed.
func (c *Conn) pinAgain() error {
	if err := os.MkdirAll(c.mapsDir(), 0o700); err != nil {
		return fmt.Errorf("make the folder for maps: %w", err)
	}
	for name, m := range c.maps {
		if exists(c.mapPath(name)) {
			continue
		}
		if err := errors.Join(m.Unpin(), m.Pin(c.mapPath(name))); err != nil {
			return fmt.Errorf("pin map %s: %w", name, err)
		}
	}
	return nil
}

// load loads the programs.
func (c *Conn) load() (*ebpf.Collection, error) {
	spec, err := loadSock()
	if err != nil {
		return nil, err
	}
	if err := errors.Join(spec.Variables["node_netns"].Set(c.cookie), spec.Variables["connected_udp"].Set(uint32(c.opt.ConnectedUDP)),
		spec.Variables["node_hash"].Set(NodeHash(c.opt.Node)), spec.Variables["exempting"].Set(c.opt.exempting())); err != nil {
		return nil, err
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

// replace makes a link lead to another program, or makes one.
func (c *Conn) replace(names []string, program string, o link.CgroupOptions) error {
	l, err := c.linkOf(names, program)
	if err != nil {
		return err
	}
	path := c.linkPath(c.linkName(program))
	if l == nil {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // it is to another cgroup
			return err
		}
		if l, err = link.AttachCgroup(o); err != nil {
			return err
		}
		return errors.Join(l.Pin(path), l.Close())
	}
	if err := l.Update(o.Program); err != nil {
		return errors.Join(err, l.Close())
	}
	if !exists(path) {
		err = l.Pin(path) // moves it
	}
	return errors.Join(err, l.Close())
}

// tidy removes links of other versions or to other cgroups, and maps of other layouts.
func (c *Conn) tidy() error {
	names, err := c.names("links")
	if err != nil {
		return err
	}
	for _, name := range names {
		if !strings.HasSuffix(name, "-"+c.version) {
			if err := os.Remove(c.linkPath(name)); err != nil {
				return err
			}
		}
	}
	dirs, err := c.names(".")
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if strings.HasPrefix(dir, "maps-") && dir != "maps-"+layout {
			if err := os.RemoveAll(c.opt.Dir + "/" + dir); err != nil {
				return err
			}
		}
	}
	return nil
}
