package bpf

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/netns"
)

// versionOf says which programs there are, for which network namespace, and with which options.
func (c *Conn) versionOf() string {
	h := sha256.New()
	h.Write(c.build.object)
	h.Write(native64(c.cookie))
	h.Write(native32(uint32(c.opt.ConnectedUDP)))
	h.Write([]byte(c.opt.Node))
	h.Write(native32(uint32(c.opt.Exempting)))
	h.Write(native32(uint32(len(c.opt.points()))))
	return hex.EncodeToString(h.Sum(nil)[:6])
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

// points are where the programs are attached. That of Learn is attached when it is needed.
func (o Options) points() map[string]ebpf.AttachType {
	all := map[string]ebpf.AttachType{
		sockProgSluiceConnect4: ebpf.AttachCGroupInet4Connect, sockProgSluiceConnect6: ebpf.AttachCGroupInet6Connect,
		sockProgSluiceSendmsg4: ebpf.AttachCGroupUDP4Sendmsg, sockProgSluiceSendmsg6: ebpf.AttachCGroupUDP6Sendmsg,
		sockProgSluiceRecvmsg4: ebpf.AttachCGroupUDP4Recvmsg, sockProgSluiceRecvmsg6: ebpf.AttachCGroupUDP6Recvmsg,
		sockProgSluiceGetpeer4: ebpf.AttachCgroupInet4GetPeername, sockProgSluiceGetpeer6: ebpf.AttachCgroupInet6GetPeername,
		sockProgSluiceRelease: ebpf.AttachCgroupInetSockRelease,
	}
	if o.GuardNodePorts {
		all[sockProgSluiceBind4], all[sockProgSluiceBind6] = ebpf.AttachCGroupInet4Bind, ebpf.AttachCGroupInet6Bind
	}
	return all
}

// phases returns the programs in the order in which they are attached. Those that do what connections need afterwards are before those
// that choose backends. While entries move from the maps of an earlier version, the programs that write a map are attached before
// those that read it.
func (c *Conn) phases() [][]string {
	phases := make([][]string, 3)
	for program, at := range c.opt.points() {
		phase := 2
		switch {
		case len(c.moves) == 0 && !choosing(program):
			phase = 0
		case len(c.moves) == 0:
		case slices.Contains([]ebpf.AttachType{ebpf.AttachCGroupInet4Connect, ebpf.AttachCGroupInet6Connect}, at):
			phase = 0
		case at == ebpf.AttachCGroupUDP4Sendmsg || at == ebpf.AttachCGroupUDP6Sendmsg:
			phase = 1
		}
		phases[phase] = append(phases[phase], program)
	}
	return phases
}

// attach loads the programs with the maps as they are, and attaches them. One that is attached already is replaced at
// once: at every moment a socket finds either. After each phase it copies what programs of an earlier version have written, so that the
// programs of the next phase find it.
func (c *Conn) attach() error {
	if err := os.MkdirAll(c.linksDir(), 0o700); err != nil {
		return fmt.Errorf("make the folder for links: %w", err)
	}
	if err := c.copyMoves(); err != nil {
		return err
	}
	programs, err := c.load()
	if err != nil {
		return err
	}
	defer programs.Close()
	if err := c.attachBeside(programs); err != nil {
		return err
	}
	for _, phase := range c.phases() {
		if err := errors.Join(c.attachAll(phase, programs), c.copyMoves()); err != nil {
			return err
		}
	}
	if err := errors.Join(c.recount(), c.pinMaps(), c.tidy()); err != nil {
		return err
	}
	return errors.Join(c.closeBeside(), c.closeMoves())
}

func (c *Conn) attachAll(list []string, programs *ebpf.Collection) error {
	names, err := c.names("links")
	if err != nil {
		return err
	}
	for _, program := range list {
		p := programs.Programs[program]
		err := c.replace(names, program, link.CgroupOptions{Path: c.opt.Cgroup, Attach: c.opt.points()[program], Program: p})
		if err == nil {
			err = pinOver(c, p, c.linkPath(programPin(program)))
		}
		if err != nil {
			return fmt.Errorf("attach program %s to %s: %w", program, c.opt.Cgroup, err)
		}
	}
	return nil
}

// attachBeside attaches programs that read what others write beside those of an earlier version, while entries move: a socket is in the
// maps of one of them, and a program does nothing for an address that another one has put in place. They stay until all programs
// are attached, also after an error. The kernel detaches them when the process ends.
func (c *Conn) attachBeside(programs *ebpf.Collection) error {
	if len(c.moves) == 0 || len(c.beside) > 0 {
		return nil
	}
	for _, program := range slices.Concat(c.phases()[1:]...) {
		o := link.CgroupOptions{Path: c.opt.Cgroup, Attach: c.opt.points()[program], Program: programs.Programs[program]}
		l, err := link.AttachCgroup(o)
		if err != nil {
			return errors.Join(fmt.Errorf("attach program %s beside the earlier one: %w", program, err), c.closeBeside())
		}
		c.beside = append(c.beside, l)
	}
	return nil
}

func (c *Conn) closeBeside() error {
	var failed []error
	for _, l := range c.beside {
		failed = append(failed, l.Close())
	}
	c.beside = nil
	return errors.Join(failed...)
}

// load loads the programs.
func (c *Conn) load() (*ebpf.Collection, error) {
	spec, err := c.build.load()
	if err != nil {
		return nil, err
	}
	if err := errors.Join(spec.Variables["node_netns"].Set(c.cookie), spec.Variables["connected_udp"].Set(uint32(c.opt.ConnectedUDP)),
		spec.Variables["node_hash"].Set(NodeHash(c.opt.Node)), spec.Variables["exempting"].Set(uint32(c.opt.Exempting))); err != nil {
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
	if err := c.fault(Attach); err != nil {
		return errors.Join(err, closeLink(l))
	}
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

// tidy removes links of other versions or to other cgroups, pins of programs that this version does not have, and maps of other layouts.
func (c *Conn) tidy() error {
	names, err := c.names("links")
	if err != nil {
		return err
	}
	for _, name := range names {
		if !c.isCurrent(name) {
			if err := os.Remove(c.linkPath(name)); err != nil {
				return err
			}
		}
	}
	return c.tidyMaps()
}

// tidyMaps removes maps that this version does not have, or not with this layout.
func (c *Conn) tidyMaps() error {
	dirs, err := c.names(".")
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if !strings.HasPrefix(dir, mapsPrefix) {
			continue // of another program, or the links
		}
		names, err := c.names(dir)
		if err != nil {
			return err
		}
		used := slices.Contains(c.build.dirs(), dir)
		for _, name := range names {
			path := filepath.Join(c.opt.Dir, dir, name)
			if c.maps[name] != nil && path == c.mapPath(name) {
				continue
			}
			if err := os.Remove(path); err != nil {
				return err
			}
		}
		if !used {
			if err := os.Remove(filepath.Join(c.opt.Dir, dir)); err != nil {
				return err
			}
		}
	}
	return nil
}
