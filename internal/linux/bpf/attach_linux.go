package bpf

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
)

// versionOf returns a hash of the compiled programs and of the options that they are loaded with.
func (c *Conn) versionOf() string {
	h := sha256.New()
	h.Write(_SockBytes)
	h.Write(native64(c.cookie))
	fmt.Fprint(h, c.opt.ConnectedUDP)
	h.Write([]byte(c.opt.Node))
	h.Write(native32(uint32(c.opt.Exempting)))
	h.Write(native32(uint32(len(c.opt.points()))))
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

// points returns the attach type of each program.
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

// phases returns the programs in the order in which they are attached: first those that translate answers and track sockets, then those
// that choose backends.
func (c *Conn) phases() [2][]string {
	var phases [2][]string
	for program := range c.opt.points() {
		phase := 0
		if choosesBackends(program) {
			phase = 1
		}
		phases[phase] = append(phases[phase], program)
	}
	return phases
}

// attach loads the programs with the current maps, and attaches them. It replaces an attached program atomically: a socket always runs
// the old or the new one.
func (c *Conn) attach() error {
	if err := os.MkdirAll(c.linksDir(), 0o700); err != nil {
		return fmt.Errorf("make the folder for links: %w", err)
	}
	programs, err := c.load()
	if err != nil {
		return err
	}
	defer programs.Close()
	for _, phase := range c.phases() {
		if err := c.attachAll(phase, programs); err != nil {
			return err
		}
	}
	return errors.Join(c.pinMaps(), c.tidy(), c.detachOthers())
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

// load loads the programs.
func (c *Conn) load() (*ebpf.Collection, error) {
	spec := c.spec.Copy()
	if err := errors.Join(spec.Variables[sockVarNodeNetns].Set(c.cookie), spec.Variables[sockVarConnectedUdp].Set(c.opt.ConnectedUDP),
		spec.Variables[sockVarNodeHash].Set(NodeHash(c.opt.Node)), spec.Variables[sockVarExempting].Set(uint32(c.opt.Exempting))); err != nil {
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

// replace updates the link of a program, or attaches the program and pins the link.
func (c *Conn) replace(names []string, program string, o link.CgroupOptions) error {
	l, err := c.linkOf(names, program)
	if err != nil {
		return err
	}
	path := c.linkPath(c.linkName(program))
	if err := c.injectFault(Attach); err != nil {
		return errors.Join(err, closeLink(l))
	}
	if l == nil {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // a link to another cgroup
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

// tidy removes the pins of other versions: links, programs and maps.
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

// tidyMaps removes maps that this version does not have, or not with these fields.
func (c *Conn) tidyMaps() error {
	dirs, err := c.names(".")
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if !strings.HasPrefix(dir, mapsPrefix) {
			continue // the links, or a folder of another program
		}
		names, err := c.names(dir)
		if err != nil {
			return err
		}
		for _, name := range names {
			path := filepath.Join(c.opt.Dir, dir, name)
			if c.maps[name] != nil && path == c.mapPath(name) {
				continue
			}
			if err := os.Remove(path); err != nil {
				return err
			}
		}
		if dir != c.mapsDir {
			if err := os.Remove(filepath.Join(c.opt.Dir, dir)); err != nil {
				return err
			}
		}
	}
	return nil
}
