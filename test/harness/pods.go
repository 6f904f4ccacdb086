//go:build linux

package harness

import (
	"encoding/binary"
	"fmt"
	"path/filepath"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/lab"
)

// Known returns an error until mode ebpf decides for the sockets of a pod in each family that it has. The maps are in
// a folder of dir (--bpf-dir).
func Known(dir string, pod *lab.Host) error {
	paths, err := filepath.Glob(filepath.Join(dir, "maps-*", "clients"))
	if err != nil || len(paths) != 1 {
		return fmt.Errorf("in %s there are %d maps of pods (%w), want one", dir, len(paths), err)
	}
	clients, err := ebpf.LoadPinnedMap(paths[0], &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	defer func() { _ = clients.Close() }() // it was only read from
	cookie, err := cookieOf(pod)
	if err != nil {
		return err
	}
	for _, a := range pod.Addrs() {
		key := binary.NativeEndian.AppendUint64(nil, cookie)
		is4 := uint32(0)
		if a.Is4() {
			is4 = 1
		}
		key = binary.NativeEndian.AppendUint32(key, is4)
		key = binary.NativeEndian.AppendUint32(key, 0)
		value := make([]byte, 16)
		if err := clients.Lookup(key, value); err != nil {
			return fmt.Errorf("%s is not known by %v: %w", pod.Name(), a, err)
		}
	}
	return nil
}

// cookieOf returns the number by which programs identify a network namespace.
func cookieOf(host *lab.Host) (cookie uint64, err error) {
	err = host.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }() // nothing was written to it
		cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		return err
	})
	return cookie, err
}
