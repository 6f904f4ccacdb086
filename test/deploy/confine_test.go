//go:build linux

package deploy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// confinedArg is the first argument of the test binary that makes it execute another program
// with the rights of a container.
const confinedArg = "confined"

// confinement are the restrictions that a container runtime applies to a process before it
// executes the program. The zero value grants nothing.
type confinement struct {
	Root         string            // the container's file system; "": the host's, read-only
	Mounts       map[string]string // folders by mount point, read-only
	Writable     map[string]string // files and folders of the host by mount point
	Capabilities []int             // bounding set; for root also permitted and effective
	User         int
	Privileged   bool // all capabilities, no filter, /proc/sys and /sys writable
	GainNew      bool // without no_new_privs
	HostPID      bool // in the PID namespace of the host
	OOMScoreAdj  int
	Filter       []unix.SockFilter
	Argv, Env    []string
}

// confine executes the program in this process, which is already in its own mount and PID namespaces.
func confine(args []string) {
	var c confinement
	err := json.Unmarshal([]byte(args[0]), &c)
	if err == nil {
		err = c.apply()
	}
	fmt.Fprintln(os.Stderr, "confine:", err)
	os.Exit(125)
}

// apply applies the restrictions and executes the program. It returns only if it fails. The
// restrictions are attributes of the thread, which is the only one that remains after exec.
func (c confinement) apply() error {
	runtime.LockOSThread()
	// This fails if the test machine is a container without the right to do so. Sluice
	// then fails to set it as well, and must work nevertheless.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(c.OOMScoreAdj)), 0)
	if err := c.enterRoot(); err != nil {
		return fmt.Errorf("enter the root: %w", err)
	}
	if !c.Privileged {
		if err := c.dropPrivileges(); err != nil {
			return fmt.Errorf("drop rights: %w", err)
		}
	}
	return fmt.Errorf("run %s: %w", c.Argv[0], unix.Exec(c.program(), c.Argv, c.Env))
}

// program finds the program on the PATH of the image.
func (c confinement) program() string {
	if filepath.IsAbs(c.Argv[0]) {
		return c.Argv[0]
	}
	return filepath.Join("/usr/local/bin", c.Argv[0])
}

type mount struct {
	source, target, kind string
	flags                uintptr
	data                 string
}

func (m mount) do() error {
	if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil {
		return fmt.Errorf("mount %s on %s: %w", m.source, m.target, err)
	}
	return nil
}

// enterRoot mounts the file systems of a container and changes the root.
func (c confinement) enterRoot() error {
	if c.Root == "" {
		return c.protectHost()
	}
	at := func(p string) string { return filepath.Join(c.Root, p) }
	mounts := []mount{
		{"", "/", "", unix.MS_REC | unix.MS_PRIVATE, ""},
		{c.Root, c.Root, "", unix.MS_BIND, ""},
		{"proc", at("proc"), "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"sysfs", at("sys"), "sysfs", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | c.readOnly(), ""},
		{"/dev/null", at("dev/null"), "", unix.MS_BIND, ""},
	}
	for target, source := range c.Mounts {
		mounts = append(mounts, readOnlyBind(source, at(target))...)
	}
	for target, source := range c.Writable {
		mounts = append(mounts, mount{source, at(target), "", unix.MS_BIND, ""})
	}
	if !c.Privileged {
		for _, p := range []string{"proc/sys", "proc/sysrq-trigger", "proc/irq", "proc/bus", "proc/fs"} {
			mounts = append(mounts, readOnlyBind(at(p), at(p))...)
		}
	}
	// Last, because it makes only the root read-only, not the mounts below it.
	mounts = append(mounts, mount{"", c.Root, "", unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY, ""})
	for _, m := range mounts {
		if err := m.do(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return errors.Join(unix.Chroot(c.Root), unix.Chdir("/"))
}

func (c confinement) readOnly() uintptr {
	if c.Privileged {
		return 0
	}
	return unix.MS_RDONLY
}

// readOnlyBind mounts a folder at another path, read-only.
func readOnlyBind(source, target string) []mount {
	return []mount{
		{source, target, "", unix.MS_BIND, ""},
		{"", target, "", unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV, ""},
	}
}

// protectHost does the same to the file system of the host as ProtectSystem=strict,
// ProtectKernelTunables= and ProtectControlGroups= of systemd.
func (c confinement) protectHost() error {
	if err := (mount{"", "/", "", unix.MS_REC | unix.MS_PRIVATE, ""}).do(); err != nil {
		return err
	}
	err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	if err != nil {
		return fmt.Errorf("make everything read-only: %w", err)
	}
	for target, source := range c.Mounts {
		for _, m := range readOnlyBind(source, target) {
			if err := m.do(); err != nil {
				return err
			}
		}
	}
	for target, source := range c.Writable {
		writable := mount{"", target, "", unix.MS_BIND | unix.MS_REMOUNT, ""}
		for _, m := range []mount{{source, target, "", unix.MS_BIND, ""}, writable} {
			if err := m.do(); err != nil {
				return err
			}
		}
	}
	return nil
}

// dropPrivileges reduces the rights of this thread to the rights of the container.
func (c confinement) dropPrivileges() error {
	var keep [2]unix.CapUserData
	for _, n := range c.Capabilities {
		keep[n/32].Permitted |= 1 << (n % 32)
	}
	for n := 0; n <= unix.CAP_LAST_CAP; n++ {
		if keep[n/32].Permitted&(1<<(n%32)) == 0 {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(n), 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
				return err
			}
		}
	}
	// syscall.Setresuid would apply to all threads and require equal rights in all of them.
	if _, _, no := syscall.RawSyscall(unix.SYS_SETRESUID, uintptr(c.User), uintptr(c.User), uintptr(c.User)); no != 0 {
		return no
	}
	for i := range keep {
		if c.User != 0 {
			keep[i].Permitted = 0
		}
		keep[i].Effective = keep[i].Permitted
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capset(&header, &keep[0]); err != nil {
		return err
	}
	return c.restrict()
}

// restrict sets no_new_privs and the filter. It is last, because they may forbid the other steps.
func (c confinement) restrict() error {
	if !c.GainNew {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return err
		}
	}
	if len(c.Filter) == 0 {
		return nil
	}
	return installFilter(c.Filter)
}
